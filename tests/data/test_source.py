import sys

import keras
import numpy as np
import pytest

from keras_vit import data


def test_without_tensorflow_it_is_said_what_brings_it(tmp_path, monkeypatch):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        keras.utils.save_img(tmp_path / name / "0.png", np.zeros((4, 4, 3)))
    # A module that is None cannot be imported.
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for make in (lambda: data.from_directory(tmp_path), lambda: data.load("cifar10", "train")):
        with pytest.raises(ImportError, match="needs TensorFlow, .* on every backend: pip install tensorflow"):
            make()
