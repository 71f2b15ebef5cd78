import keras
import pytest

import keras_vit
from tests.tiny import build


@pytest.mark.parametrize("name", ["head", "config", "blocks", "preprocessing", "grid_size"])
def test_what_is_read_from_the_layers_cannot_be_set(name):
    model = build()
    with pytest.raises(AttributeError, match=f"`{name}` of model 'vit_B16' is read from its layers"):
        setattr(model, name, keras.layers.Dense(7))
    model.mine = 3
    assert model.mine == 3 and len(model.weights) == len(build().weights)


def test_a_model_is_built_in_its_own_dtype():
    model = build(dtype="mixed_bfloat16")
    assert model.get_layer("block_00").compute_dtype == "bfloat16"
    assert model.get_layer("block_00").mlp.dense_1.compute_dtype == "bfloat16"
    assert model.get_layer("head").compute_dtype == "float32"
    assert build().get_layer("block_00").compute_dtype == keras.config.dtype_policy().compute_dtype


def test_the_global_policy_stays_where_building_fails():
    before = keras.config.dtype_policy().name
    with pytest.raises(ValueError, match="pooling"):
        build(dtype="mixed_bfloat16", pooling="mean")
    assert keras.config.dtype_policy().name == before


def test_other_builders_and_files_take_it(tmp_path):
    bit = keras_vit.BiTR50x1(image_size=32, stages=(1,), width_factor=0.5, dtype="mixed_bfloat16")
    assert bit.get_layer("stage_1_unit_01").compute_dtype == "bfloat16"
    keras_vit.save_weights(build(), tmp_path / "tiny.npz", format="npz")
    model = keras_vit.from_pretrained(tmp_path / "tiny.npz", num_heads=3, dtype="mixed_bfloat16")
    assert model.get_layer("block_00").compute_dtype == "bfloat16"
    assert model.output.dtype == "float32"
