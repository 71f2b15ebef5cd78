import keras
import pytest

from keras_vit.training.depth import layer_depths
from tests import tiny
from tests.training.test_decay_groups import MODELS


@pytest.mark.parametrize("image_size", [16, (None, None)])
def test_vit(image_size):
    model = tiny.build(image_size=image_size, num_registers=1, distillation_token=True, dropout_rate=0.1)
    depths = layer_depths(model)
    assert list(depths) == [layer.name for layer in model.layers]
    assert {name for name, depth in depths.items() if depth == 0} >= {
        "patch_embedding", "class_token", "distillation_token", "registers", "position_embedding"
    }  # fmt: skip
    assert (depths["block_00"], depths["block_01"]) == (1, 2)
    assert {depths[name] for name in ("norm", "pooling", "pooling_dist", "head", "head_dist", "mean_of_heads")} == {3}


def test_depths_rise_by_number_and_not_by_name():
    depths = layer_depths(tiny.build(num_layers=11))
    assert [depths[f"block_{i:02d}"] for i in range(11)] == list(range(1, 12))


def test_the_resnet_of_a_hybrid_is_its_embedding():
    depths = layer_depths(MODELS["hybrid"]())
    assert depths["root_conv"] == depths["stage_1_unit_01"] == depths["patch_embedding"] == 0
    assert depths["block_00"] == 1 and depths["head"] == 2


def test_the_units_of_a_bit_are_its_blocks():
    depths = layer_depths(MODELS["bit"]())
    assert [depths[n] for n in ("root_conv", "stage_1_unit_01", "stage_2_unit_01", "norm", "head")] == [0, 1, 2, 3, 3]


def test_a_reloaded_model_is_as_deep(tmp_path):
    model = tiny.build(distillation_token=True)
    model.save(tmp_path / "m.keras")
    assert layer_depths(keras.models.load_model(tmp_path / "m.keras")) == layer_depths(model)


def test_a_head_of_the_users_own():
    backbone = tiny.build(num_classes=0)
    model = keras.Model(backbone.input, keras.layers.Dense(2, name="mine")(backbone.output))
    assert layer_depths(model) == layer_depths(backbone) | {"mine": 3}


def test_layers_around_a_nested_model_are_at_the_top():
    backbone = tiny.build(num_classes=0, name="backbone")
    inputs = keras.Input((16, 16, 3), name="images")
    x = keras.layers.Normalization(name="normalization")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, name="mine")(backbone(x)))
    # Keras' own layer has weights, and so the name.
    assert layer_depths(model) == layer_depths(backbone) | {"mine": 3, "normalization": 3}


def test_one_name_twice_is_refused():
    backbone = tiny.build(num_classes=0)
    model = keras.Sequential([backbone, keras.layers.Dense(2, name="norm")], name="mine")
    with pytest.raises(ValueError, match="Expected names.*'mine' with two layers named 'norm'"):
        layer_depths(model)


def test_other_models():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="dense")], name="mine")
    with pytest.raises(ValueError, match="Expected a model of this package's builders.*'mine' with layers dense"):
        layer_depths(model)
