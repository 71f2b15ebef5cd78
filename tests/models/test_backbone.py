import keras
import pytest

from keras_vit.models.backbone import HEADS, find_parts, head_inputs
from tests import tiny
from tests.errors import refuses
from tests.training.test_optimizers import MODELS

Dense = keras.layers.Dense


def names(layers):
    return [layer.name for layer in layers]


def nested(*around, **changes):
    """Builds a sequential model with a ViT without a head in the place of None."""
    i = around.index(None)
    vit = tiny.build(num_classes=0, name="vit", **changes)
    return keras.Sequential([keras.Input((16, 16, 3)), *around[:i], vit, *around[i + 1 :]], name="mine")


@pytest.mark.parametrize("name", MODELS)
def test_parts_contain_each_layer_once(name):
    model = MODELS[name]()
    parts = find_parts(model)
    assert sorted(names([*parts.below, *parts.blocks, *parts.above, *parts.others])) == sorted(names(model.layers))
    assert {layer.name for layer in parts.others if layer.weights} == set(HEADS) & set(names(model.layers))
    assert parts.models == [model]
    assert "norm" in names(parts.above) or name == "qk_norm"


@pytest.mark.parametrize("changes", [{}, {"distillation_token": True}, {"pooling": "none"}, {"representation_size": 7}])
def test_new_head_on_a_backbone_is_in_others(changes):
    model = tiny.build(num_classes=0, **changes)
    body = keras.Model(model.input, Dense(2, name="block_7")(model.output))
    assert [layer.name for layer in find_parts(body).others if layer.weights] == ["block_7"]


def test_branch_beside_the_blocks_is_in_others():
    vit = tiny.build(num_layers=4)
    x = vit.get_layer("block_00").output
    for i in range(6):
        x = keras.layers.LayerNormalization(name=f"aside_{i}")(x)
    parts = find_parts(keras.Model(vit.input, [vit.output, Dense(3, name="aside")(x)]))
    assert names(parts.blocks) == ["block_00", "block_01", "block_02", "block_03"]
    assert set(names(parts.others)) == {*(f"aside_{i}" for i in range(6)), "aside", "head"}


def test_parts_of_nested_model_and_layers_around_it():
    head = keras.Sequential([keras.layers.Dropout(0.1, name="drop"), Dense(2, name="mine")])
    model = nested(keras.layers.Rescaling(1.0, name="scale"), None, head)
    parts = find_parts(keras.Sequential([keras.layers.RandomFlip(name="flip"), model]))
    assert set(names(parts.others)) == {"flip", "scale", "drop", "mine"}
    assert names(parts.blocks) == ["block_00", "block_01"] and names(parts.above)[0] == "norm"
    assert names(parts.models)[1:] == ["mine", "vit"]


def test_parts_of_refuses_other_models():
    dense = keras.Sequential([keras.Input((2,)), Dense(2, name="alone")], name="other")
    refuses("Expected a model built by keras_vit.*'other' with the layers alone", find_parts, dense)
    inputs = keras.Input((16, 16, 3))
    twins = [tiny.build(num_classes=0, name=name)(inputs) for name in ("a", "b")]
    refuses("exactly one.*with 2 such models in it", find_parts, keras.Model(inputs, keras.layers.Add()(twins)))
    assert head_inputs(dense) == []


def test_head_inputs():
    for model in (MODELS["vit"](), MODELS["bit"]()):
        assert head_inputs(model) == [model.get_layer("head").input]
    assert head_inputs(tiny.build(num_classes=0)) == []
    model = MODELS["distilled"]()
    assert {id(x) for x in head_inputs(model)} == {id(model.get_layer(name).input) for name in HEADS}
    model = nested(keras.layers.Rescaling(2.0), None, keras.layers.Dropout(0.1, name="drop"), Dense(2))
    assert head_inputs(model) == [model.get_layer("drop").input]
