"""What files of version 0.1.0 hold, from before models had records: they load, answer the same and get a record."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.preprocessing import carrier_of
from keras_vit.record import _of_version_0_1
from tests.golden import GOLDEN_FOLDER
from tests.models.test_vit import KINDS
from tests.tiny import build

FOLDER = GOLDEN_FOLDER / "version_0_1"
NAMES = sorted(path.stem for path in FOLDER.glob("*.keras"))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_version_0_1_loads_and_answers_the_same(name, tmp_path):
    model = keras.saving.load_model(FOLDER / f"{name}.keras")
    with np.load(FOLDER / "io.npz") as io:
        images, answers = io[f"{name}/images"], io[f"{name}/answers"]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(images)), answers, atol=1e-4)
    config = keras_vit.config_of(model)
    inputs = keras.Input(model.input_shape[1:])
    nested = keras.Model(inputs, keras.layers.Identity()(model(inputs)))
    nested.save(tmp_path / "nested.keras")
    assert keras_vit.config_of(keras.saving.load_model(tmp_path / "nested.keras")) == config


def test_the_files_of_version_0_1_are_all_kinds():
    assert NAMES == ["bit", "distilled", "hybrid", "map_relative", "own_head", "raw_gap", "vit"]
    raw = keras_vit.config_of(keras.saving.load_model(FOLDER / "raw_gap.keras"))
    assert raw.preprocessing == keras_vit.Preprocessing(
        mean=(0.4, 0.5, 0.6), interpolation="bicubic", crop_fraction=0.9
    )
    assert raw.any_size and raw.grid == (56, 56) and not raw.class_token_position and raw.num_registers == 2
    assert keras_vit.config_of(keras.saving.load_model(FOLDER / "own_head.keras")).num_classes == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_layers_tell_is_what_the_record_says(kind):
    model = build(**KINDS[kind])
    assert _of_version_0_1(model, carrier_of(model)) == model.config


def test_a_resnet_and_a_hybrid_likewise():
    arguments = {"stages": (1, 1), "width_factor": 0.5, "image_size": 32, "num_classes": 3}
    hybrid = keras_vit.ViT("B/16", **arguments, patch_size=1, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=8)
    for model in (keras_vit.BiT("R50x1", **arguments, pool_padding="zeros"), hybrid):
        assert _of_version_0_1(model, carrier_of(model)) == model.config
