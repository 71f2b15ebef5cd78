import keras

from keras_vit.models.graph import nodes_before, operations_before
from tests.tiny import build


def kinds(operations):
    return [type(operation).__name__ for operation in operations]


def test_a_layer_called_twice_is_two_nodes_and_a_fork_one():
    inputs = keras.Input((2,))
    layer = keras.layers.Dense(2)
    model = keras.Model(inputs, keras.layers.Add()([layer(layer(inputs)), inputs]))
    assert kinds(operation for operation, _ in nodes_before(model.outputs)) == ["Add", "Dense", "InputLayer", "Dense"]


def test_what_stands_before_a_layer_is_found_through_models_and_in_them():
    vit = build()
    layer = vit.get_layer("normalization")
    assert kinds(operations_before(vit, layer)) == ["InputLayer"]
    scaling = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Rescaling(2.0)])
    model = keras.Sequential([keras.Input((16, 16, 3)), scaling, vit, keras.layers.Dense(2)])
    assert kinds(operations_before(model, layer)) == ["Rescaling", "InputLayer", "InputLayer", "InputLayer"]
    # The same ViT, called in another graph, has nothing before it.
    assert kinds(operations_before(keras.Sequential([keras.Input((16, 16, 3)), vit]), layer)) == ["InputLayer"] * 2
    assert operations_before(scaling, layer) is None
