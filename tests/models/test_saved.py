import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models.saved import read_model
from tests.tiny import build, randomize


def test_a_file_a_run_and_a_checkpoint_hold_the_same_model(tmp_path):
    model = randomize(build(class_names=list("abcde"), crop_fraction=0.9))
    (tmp_path / "run").mkdir()
    model.save(tmp_path / "run" / "model.keras")
    keras_vit.save_weights(model, tmp_path / "model.npz")
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    expected = keras.ops.convert_to_numpy(model(images))
    for path in (tmp_path / "run", tmp_path / "run" / "model.keras", tmp_path / "model.npz"):
        read = read_model(path, num_heads=None)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(read(images)), expected, atol=1e-5)
    carried = read_model(tmp_path / "run").get_layer("normalization")
    assert carried.class_names == list("abcde") and carried.crop_fraction == 0.9


def test_what_holds_no_model_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"a run that has ended.*model\.keras"):
        read_model(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match=r"none\.keras"):
        read_model(tmp_path / "none.keras")
    (tmp_path / "text.keras").write_text("no model")
    with pytest.raises(ValueError, match=r"text\.keras.*damaged"):
        read_model(tmp_path / "text.keras")
    with pytest.raises(ValueError, match="no num_heads"):
        read_model(tmp_path / "text.keras", num_heads=3)
