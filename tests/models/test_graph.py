import keras

from keras_vit.models.graph import nodes_before, operations_before, replay
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


def test_a_replay_calls_what_it_is_told_to():
    inputs = {name: keras.Input((2,), name=name) for name in "ab"}
    x = keras.layers.Add(name="add")([inputs["b"], inputs["a"]])
    model = keras.Model(inputs, {"sum": x, "as it came": inputs["a"], "double": keras.ops.multiply(x, 2)})
    given, seen = [keras.KerasTensor((5, 2)), keras.KerasTensor((5, 2))], []

    def call(operation, *args, **kwargs):
        seen.append((operation.name, args[0]))
        return operation.compute_output_spec(*args, **kwargs)

    outputs = replay(model, given, call)
    assert outputs[0] is given[0] and [tuple(y.shape) for y in outputs] == [(5, 2)] * 3
    assert seen[0] == ("add", [given[1], given[0]]) and len(seen) == 2 and seen[1][1] is outputs[2]
