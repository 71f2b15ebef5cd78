import keras
import numpy as np
import pytest

from keras_vit.layers import TransformerBlock
from keras_vit.models.graph import last_reading, nodes_before, operations_before, replay
from tests.models.small import answers
from tests.tiny import build


def kinds(operations):
    return [type(operation).__name__ for operation in operations]


def test_nodes_before_shared_layers_and_forks():
    inputs = keras.Input((2,))
    layer = keras.layers.Dense(2)
    model = keras.Model(inputs, keras.layers.Add()([layer(layer(inputs)), inputs]))
    assert kinds(operation for operation, _ in nodes_before(model.outputs)) == ["Add", "Dense", "InputLayer", "Dense"]


def test_operations_before_enters_nested_models():
    vit = build()
    layer = vit.get_layer("normalization")
    assert kinds(operations_before(vit, layer)) == ["InputLayer"]
    scaling = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Rescaling(2.0)])
    model = keras.Sequential([keras.Input((16, 16, 3)), scaling, vit, keras.layers.Dense(2)])
    assert kinds(operations_before(model, layer)) == ["Rescaling", "InputLayer", "InputLayer", "InputLayer"]
    # In another graph, nothing comes before the same ViT.
    assert kinds(operations_before(keras.Sequential([keras.Input((16, 16, 3)), vit]), layer)) == ["InputLayer"] * 2
    assert operations_before(scaling, layer) is None


def test_replay_calls_each_operation_with_its_inputs():
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
        ({"pooling": "none", "num_classes": 0}, None),
    ],
)
def test_last_reading_number_of_tokens(changes, num_tokens):
    model = build(**changes)
    reading = last_reading(model)
    assert (reading and reading.num_tokens) == num_tokens
    assert reading is None or reading.block is model.blocks[-1]


def test_last_reading_is_none_if_all_tokens_are_read():
    model = build()
    kind, last = type(model), model.blocks[-1]
    for tokens in (last.output, model.get_layer("norm").output, keras.layers.Activation("relu")(last.output)):
        assert last_reading(kind(model.input, [model.output, tokens])) is None
    again = model.get_layer("pooling")(last(last.output))
    assert last_reading(kind(model.input, [model.output, again])) is None


def test_copies_of_a_model_record_no_skipped_tokens():
    model = build()
    copy = keras.models.clone_model(model)
    (logits,) = keras.tree.flatten(model.call(keras.Input((16, 16, 3))))
    recorded = [inputs[0] for operation, inputs in nodes_before([logits]) if operation.name == "norm"]
    for tokens in (copy.blocks[-1].output, *recorded):
        assert tokens.shape == (None, 17, 12)


class Doubled(TransformerBlock):
    def call(self, tokens, sizes=None, training=None, rotary=None):
        return 2 * super().call(tokens, sizes, training, rotary=rotary)


class Neighbours(keras.layers.Layer):
    """Replaces an MLP; returns the next token in the place of each."""

    def call(self, tokens):
        return keras.ops.roll(tokens, -1, axis=1)

    def dense_layers(self):
        return ()


def doubled(layer):
    return Doubled.from_config(layer.get_config())


def with_neighbours(layer):
    block = TransformerBlock.from_config(layer.get_config())
    block.mlp = Neighbours()
    return block


def patched(layer):
    block, call = TransformerBlock.from_config(layer.get_config()), TransformerBlock.call
    block.call = lambda tokens, training=None: 2 * call(block, tokens, training=training)
    return block


def patched_within(layer):
    block = TransformerBlock.from_config(layer.get_config())
    call = block.mlp.call
    block.mlp.call = lambda tokens, training=None: 2 * call(tokens, training=training)
    return block


def regularized(layer):
    block = TransformerBlock.from_config(layer.get_config())
    block.activity_regularizer = keras.regularizers.L2(1.0)
    return block


@pytest.mark.parametrize("change", [doubled, with_neighbours, patched, patched_within, regularized])
def test_changed_block_computes_all_tokens(change):
    model, images = build(), np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")

    def clone(layer):
        return change(layer) if layer is model.blocks[-1] else type(layer).from_config(layer.get_config())

    changed = keras.models.clone_model(model, clone_function=clone)
    full = keras.Model(changed.input, changed.output)
    np.testing.assert_allclose(answers(changed, images), answers(full, images), rtol=1e-5)
    losses = [[float(loss) for loss in each.losses] for each in (changed, full)]
    assert losses[0] == pytest.approx(losses[1]) and len(losses[0]) == (change is regularized)


@pytest.mark.long
def test_uncalled_model_compiles_as_one_graph():
    import torch

    model, images = build(), torch.rand(2, 16, 16, 3)
    found = torch.compile(model, backend="eager", fullgraph=True)(images)
    torch.testing.assert_close(found, model(images))


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
