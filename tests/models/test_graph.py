import keras
import numpy as np
import pytest

from keras_vit.layers import MLP, TransformerBlock
from keras_vit.models.graph import nodes_before, operations_before, replay
from tests.models.small import answers
from tests.tiny import build, randomize

KINDS = [({}, 1), ({"distillation_token": True}, 2), ({"num_registers": 2, "norm_after_pooling": True}, 1)]
KINDS += [({"token_merging": (2, 0)}, 1), ({"token_merging": 2}, 1), ({"pooling": "gap"}, 16)]
KINDS += [({"pooling": "token_gap"}, 17), ({"pooling": "map"}, 16), ({"pooling": "none", "num_classes": 0}, 17)]


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


@pytest.fixture
def lengths(monkeypatch):
    """Numbers of tokens that the MLPs receive, in the order of their calls."""
    found, call = [], MLP.call
    monkeypatch.setattr(MLP, "call", lambda self, x, training=None: found.append(x.shape[1]) or call(self, x, training))
    return found


@pytest.mark.parametrize("changes, num_tokens", KINDS)
def test_last_block_computes_the_tokens_that_are_read(changes, num_tokens, lengths):
    model, images = randomize(build(**changes)), np.random.default_rng(0).normal(size=(2, 16, 16, 3))
    lengths.clear()
    outputs = model(images)
    assert lengths[model.config.num_layers - 1] == num_tokens
    expected = keras.Model(model.input, model.output)(images)
    np.testing.assert_allclose(*map(keras.ops.convert_to_numpy, (outputs, expected)), rtol=1e-4, atol=1e-5)


def test_last_block_computes_all_tokens_if_they_are_read(lengths):
    model, images = build(), np.zeros((1, 16, 16, 3))
    kind, last = type(model), model.blocks[-1]
    outputs = [last.output, model.get_layer("norm").output, keras.layers.Activation("relu")(last.output)]
    outputs.append(model.get_layer("pooling")(last(last.output)))
    for tokens in outputs:
        cut = kind(model.input, [model.output, tokens])
        lengths.clear()
        cut(images)
        assert set(lengths) == {17}


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


def regularized(layer):
    block = TransformerBlock.from_config(layer.get_config())
    block.activity_regularizer = keras.regularizers.L2(1.0)
    return block


@pytest.mark.parametrize("change", [doubled, with_neighbours, regularized])
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
