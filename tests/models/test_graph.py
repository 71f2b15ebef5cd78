import keras
import numpy as np
import pytest

from keras_vit.layers import MLP, TransformerBlock
from keras_vit.models.graph import nodes_before
from tests.models.small import answers, images
from tests.tiny import assert_close, build, randomize

KINDS = [({}, 1), ({"distillation_token": True}, 2), ({"num_registers": 2, "norm_after_pooling": True}, 1)]
KINDS += [({"token_merging": (2, 0)}, 1), ({"token_merging": 2}, 1), ({"pooling": "gap"}, 16)]
KINDS += [({"pooling": "token_gap"}, 17), ({"pooling": "map"}, 16), ({"pooling": "none", "num_classes": 0}, 17)]
# (changes of the model, number of tokens that the last block computes, absolute tolerance of the outputs)
CASES = [(*kind, 1e-5) for kind in KINDS]
CASES += [({"position_embedding": "relative", "image_size": (12, 20), "num_layers": 1}, 1, 1e-4)]
CASES += [({"distillation_token": True, "return_both_heads": True, "num_registers": 2, "token_merging": 3}, 2, 1e-4)]
CASES += [({"remat": True, "rotary_embedding": "eva02", "hidden_dim": 24, "layer_scale_init": 0.5}, 1, 1e-4)]


@pytest.fixture
def lengths(monkeypatch):
    """Numbers of tokens that the MLPs receive, in the order of their calls."""
    found, call = [], MLP.call
    monkeypatch.setattr(MLP, "call", lambda self, x, training=None: found.append(x.shape[1]) or call(self, x, training))
    return found


@pytest.mark.parametrize("changes, num_tokens, atol", CASES)
def test_last_block_computes_the_tokens_that_are_read(changes, num_tokens, atol, lengths):
    model = randomize(build(**changes))
    # A plain functional model computes all tokens.
    full = keras.Model(model.input, model.output)
    x, last = images(4, *model.input_shape[1:]), model.config.num_layers - 1
    before, outputs, changed = model.get_weights(), [], []
    for each in (model, full):
        each.set_weights(before)
        lengths.clear()
        outputs.append(keras.tree.flatten(each(x)))
        assert each is full or lengths[last] == num_tokens
        each.compile(keras.optimizers.SGD(1e-3), "mse")
        each.train_on_batch(x, [np.ones(y.shape, "float32") for y in outputs[-1]])
        changed.append(each.get_weights())
    assert lengths[last] == keras.tree.flatten(model.blocks[-1].output)[0].shape[1]
    assert_close(*outputs, rtol=1e-4, atol=atol)
    for old, a, b in zip(before, *changed, strict=True):
        np.testing.assert_allclose(a - old, b - old, rtol=1e-3, atol=1e-4 * np.abs(b - old).max() + 1e-7)


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


class Neighbours(keras.layers.Layer):
    """Replaces an MLP; returns the next token in the place of each."""

    def call(self, tokens):
        return keras.ops.roll(tokens, -1, axis=1)

    def dense_layers(self):
        return ()


def with_neighbours(layer):
    block = TransformerBlock.from_config(layer.get_config())
    block.mlp = Neighbours()
    return block


def regularized(layer):
    block = TransformerBlock.from_config(layer.get_config())
    block.activity_regularizer = keras.regularizers.L2(1.0)
    return block


@pytest.mark.parametrize("change", [with_neighbours, regularized])
def test_changed_block_computes_all_tokens(change):
    model, images = build(), np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")

    def clone(layer):
        return change(layer) if layer is model.blocks[-1] else type(layer).from_config(layer.get_config())

    changed = keras.models.clone_model(model, clone_function=clone)
    full = keras.Model(changed.input, changed.output)
    np.testing.assert_allclose(answers(changed, images), answers(full, images), rtol=1e-5)
    losses = [[float(loss) for loss in each.losses] for each in (changed, full)]
    assert losses[0] == pytest.approx(losses[1]) and len(losses[0]) == (change is regularized)
