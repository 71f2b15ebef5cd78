import numpy as np
import pytest

import keras_vit
from tests.tiny import build, randomize


@pytest.fixture
def tiny():
    return randomize(build())


@pytest.fixture
def tiny_file(tiny, tmp_path):
    path = tmp_path / "tiny.npz"
    keras_vit.save_weights(tiny, path)
    return path


@pytest.fixture
def tiny_arrays(tiny_file):
    with np.load(tiny_file) as file:
        return dict(file)
