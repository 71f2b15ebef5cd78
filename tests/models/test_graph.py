import keras
import numpy as np
import pytest

from keras_vit.models.graph import last_reading, nodes_before, operations_before, replay
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


@pytest.mark.parametrize(
    ("changes", "num_tokens"),
    [
        ({}, 1),
        ({"distillation_token": True}, 2),
        ({"num_registers": 2, "norm_after_pooling": True}, 1),
        ({"token_merging": (2, 0)}, 1),
        ({"token_merging": 2}, 1),
        ({"pooling": "gap"}, None),
        ({"pooling": "token_gap"}, None),
        ({"pooling": "map"}, None),
        ({"pooling": None, "num_classes": 0}, None),
    ],
)
def test_the_tokens_of_the_last_block_that_the_outputs_read(changes, num_tokens):
    model = build(**changes)
    reading = last_reading(model)
    assert (reading and reading.num_tokens) == num_tokens
    assert reading is None or reading.block is model.blocks[-1]


def test_all_tokens_are_read_where_the_outputs_hold_them_or_a_block_runs_twice():
    model = build()
    kind, last = type(model), model.blocks[-1]
    for tokens in (last.output, model.get_layer("norm").output, keras.layers.Activation("relu")(last.output)):
        assert last_reading(kind(model.input, [model.output, tokens])) is None
    again = model.get_layer("pooling")(last(last.output))
    assert last_reading(kind(model.input, [model.output, again])) is None


def test_copies_of_a_model_record_no_skipped_tokens():
    model = build()
    copy = keras.models.clone_model(model)
    full = keras.Model(copy.input, copy.blocks[-1].output)
    assert full(np.zeros((1, 16, 16, 3))).shape == (1, 17, 12)
    nested = keras.Model(model.input, model(model.input))
    assert nested.output_shape == model.output_shape


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="other backends have no hooks")
@pytest.mark.parametrize("name", ["block_01", "block_01.mlp", "norm", "pooling"])
def test_hooks_see_all_tokens(name):
    import torch

    model, images = build(), torch.rand(2, 16, 16, 3)
    expected, seen = model(images), []
    layer_name, _, inner = name.partition(".")
    layer = model.get_layer(layer_name)
    layer = getattr(layer, inner) if inner else layer
    handle = layer.register_forward_hook(lambda _, inputs, outputs: seen.append(inputs[0].shape[1]))
    found = model(images)
    with torch.no_grad():
        without_gradients = model(images)
    assert seen == [17, 17]
    handle.remove()
    for each in (found, without_gradients):
        torch.testing.assert_close(each, expected)
