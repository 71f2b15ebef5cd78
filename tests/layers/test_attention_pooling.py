import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import AttentionPooling
from tests.contract import randomize


def reference(layer, x):
    """The probe's attention and the residual MLP from their definition, in float64, and the attention weights."""
    weights = {w.path.split("/", 1)[-1]: ops.convert_to_numpy(w).astype("float64") for w in layer.weights}

    def dense(x, name, axes="btc,chd->bthd"):
        return np.einsum(axes, x, weights[f"{name}/kernel"]) + weights[f"{name}/bias"]

    query = dense(weights["probe"], "attention/query")
    key, value = (dense(x, f"attention/{name}") for name in ("key", "value"))
    scores = np.exp(np.einsum("qphd,bkhd->bhqk", query, key) / np.sqrt(query.shape[-1]))
    scores /= scores.sum(-1, keepdims=True)
    y = dense(np.einsum("bhqk,bkhd->bhd", scores, value), "attention/attention_output", "bhd,hdc->bc")
    normed = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + layer.layer_norm_epsilon)
    normed = normed * weights["norm/gamma"] + weights["norm/beta"]
    hidden = np.maximum(dense(normed, "mlp/dense_1", "bc,cm->bm"), 0)
    return y + dense(hidden, "mlp/dense_2", "bm,mc->bc"), scores


@pytest.mark.parametrize("num_heads, epsilon", [(1, 1e-6), (2, 1e-6), (3, 0.5)])
def test_definition(num_heads, epsilon):
    x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")
    layer = AttentionPooling(num_heads, 12, activation="relu", layer_norm_epsilon=epsilon)
    layer.build(x.shape)
    randomize(layer, np.random.default_rng(1), scale=0.5)
    expected, expected_scores = reference(layer, x)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, rtol=1e-5, atol=1e-5)
    y, scores = map(ops.convert_to_numpy, layer(x, return_attention_scores=True))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


def test_token_of_size_n_counts_as_n_copies():
    """A token of size n gets the attention of n equal tokens."""
    x = np.random.default_rng(0).normal(size=(2, 4, 8)).astype("float32")
    sizes = np.array([[9, 2, 1, 3], [9, 1, 4, 2]], "int32")
    layer = AttentionPooling(2, 12, num_prefix_tokens=1)
    layer.build(x.shape)
    randomize(layer, np.random.default_rng(1), scale=0.5)
    y, scores = map(ops.convert_to_numpy, layer(x, sizes, return_attention_scores=True))
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x, sizes)), y, rtol=1e-6)
    for i in range(2):
        copies = layer(np.repeat(x[i : i + 1], [1, *sizes[i, 1:]], axis=1))
        np.testing.assert_allclose(y[i], ops.convert_to_numpy(copies)[0], rtol=1e-5, atol=1e-5)
    assert scores.shape == (2, 2, 1, 3)
    np.testing.assert_allclose(scores.sum(-1), 1, rtol=1e-5)


def test_symbolic_scores():
    outputs = AttentionPooling(2, 12)(keras.Input((5, 8)), return_attention_scores=True)
    assert [y.shape for y in outputs] == [(None, 8), (None, 2, 1, 5)]


def test_refuses_more_heads_than_channels():
    with pytest.raises(ValueError, match="Expected at least as many channels as heads. Received: 4 channels, 8 heads."):
        AttentionPooling(8, 16)(np.zeros((1, 3, 4)))
