"""Layers of a VT-ResNet after its ResNet: tokenizers, the transformer of the tokens, and their projector."""

import keras
import numpy as np
import pytest
from keras import ops
from scipy.special import softmax

from keras_vit import arguments
from keras_vit.models.vt_resnet import layers
from tests.contract import randomize
from tests.errors import refuses

SHAPES = [(2, 4, 5, 6), (2, 3, 8)]


@pytest.mark.parametrize("token_dim", [None, 6, 7])
def test_filter_tokenizer_definition(token_dim):
    layer = layers.FilterTokenizer(3, token_dim)
    x = np.random.default_rng(0).normal(size=(2, 4, 5, 6))
    tokens, weights = map(ops.convert_to_numpy, layer(x, return_attention_scores=True))
    filters, *value = [ops.convert_to_numpy(w).astype("float64") for w in layer.weights]
    assert len(value) == (token_dim == 7)
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(x)), tokens)
    for image, y, scores in zip(x, tokens, weights, strict=True):
        pixels = image.reshape(20, 6)
        attention = softmax(pixels @ filters, axis=0).T
        expected = attention @ pixels
        np.testing.assert_allclose(y, expected @ value[0] if value else expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(scores, attention.reshape(3, 4, 5), rtol=1e-4, atol=1e-6)


def test_filter_tokenizer_large_scores_stay_finite_in_float16():
    layer = layers.FilterTokenizer(3, dtype="mixed_float16")
    y = ops.convert_to_numpy(layer(np.random.default_rng(0).normal(scale=3000, size=(2, 4, 5, 6)).astype("float16")))
    assert np.isfinite(y).all()


def inputs():
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype("float32") for shape in SHAPES]


@pytest.mark.parametrize("token_dim", [None, 8])
def test_recurrent_tokenizer_definition(token_dim):
    layer = layers.RecurrentTokenizer(token_dim)
    x, tokens = inputs()
    y, weights = map(ops.convert_to_numpy, layer(x, tokens, return_attention_scores=True))
    to_filters, *value = [ops.convert_to_numpy(w).astype("float64") for w in layer.weights]
    assert y.shape == (2, 3, token_dim or 6) and len(value) == (token_dim == 8)
    for i in range(2):
        pixels, filters = x[i].reshape(20, 6), tokens[i] @ to_filters
        attention = softmax(pixels @ filters.T, axis=0)
        expected = attention.T @ pixels
        np.testing.assert_allclose(y[i], expected @ value[0] if value else expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(weights[i], attention.T.reshape(3, 4, 5), rtol=1e-4, atol=1e-6)


def test_recurrent_tokenizer_scores_beyond_float16_stay_finite():
    layer = layers.RecurrentTokenizer(dtype="mixed_float16")
    x, tokens = (500 * each for each in inputs())
    y, weights = (ops.convert_to_numpy(each) for each in layer(x, tokens, return_attention_scores=True))
    products = np.einsum("bhwc,blc->blhw", x, tokens @ ops.convert_to_numpy(layer.weights[0]))
    assert np.abs(products).max() > 65504 and np.isfinite(y).all()
    np.testing.assert_allclose(weights.sum(axis=(2, 3)), 1, rtol=1e-2)


@pytest.mark.parametrize("key_dim", [None, 4])
def test_token_transformer_definition(key_dim):
    layer = layers.TokenTransformer(key_dim)
    layer.build((None, 5, 8))
    randomize(layer, np.random.default_rng(0), scale=0.5)
    key, query, first, second = (ops.convert_to_numpy(w).astype("float64") for w in layer.weights)
    x = np.random.default_rng(1).normal(size=(2, 5, 8))
    for tokens, y in zip(x, ops.convert_to_numpy(layer(x)), strict=True):
        tokens = tokens + softmax((tokens @ key) @ (tokens @ query).T, axis=1) @ tokens
        expected = tokens + np.maximum(tokens @ first, 0) @ second
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_token_transformer_drops_branches_independently():
    layer = layers.TokenTransformer(drop_path_rate=0.5, seed=0)
    x = np.full((200, 2, 2), 1, "float32")
    layer.build(x.shape)
    layer.set_weights([np.zeros((2, 2)), np.zeros((2, 2)), np.eye(2), np.eye(2)])
    found = ops.convert_to_numpy(layer(x, training=True))[:, 0, 0]
    # A branch that is kept counts twice: the attention adds 0 or 2 to 1, and the MLP adds 0 or 2 times the sum.
    assert set(found.tolist()) == {1, 3, 9}


@pytest.mark.parametrize("key_dim, token_dim", [(None, 6), (4, 8)])
def test_token_projector_definition(key_dim, token_dim):
    layer = layers.TokenProjector(key_dim)
    rng = np.random.default_rng(0)
    x, tokens = rng.normal(size=(2, 4, 5, 6)), rng.normal(size=(2, 3, token_dim))
    layer.build(x.shape, tokens.shape)
    randomize(layer, rng, scale=0.5)
    query, key, *value = (ops.convert_to_numpy(w).astype("float64") for w in layer.weights)
    for i, y in enumerate(ops.convert_to_numpy(layer(x, tokens))):
        weights = softmax((x[i].reshape(20, 6) @ query) @ (tokens[i] @ key).T, axis=1)
        added = weights @ (tokens[i] @ value[0] if value else tokens[i])
        np.testing.assert_allclose(y, x[i] + added.reshape(4, 5, 6), rtol=1e-4, atol=1e-4)


def test_token_projector_drop_path_drops_residual_per_image():
    layer = layers.TokenProjector(drop_path_rate=0.5, seed=0)
    y = layer(np.zeros((100, 2, 2, 3), "float32"), np.ones((100, 4, 3), "float32"), training=True)
    found = ops.convert_to_numpy(y).reshape(100, -1)
    assert (found == found[:, :1]).all() and set(found[:, 0].round(4).tolist()) == {0, 2}


def test_vt_module_is_tokenizer_transformer_projector():
    x, tokens = (np.random.default_rng(0).normal(size=shape).astype("float32") for shape in SHAPES)
    for recurrent, inputs in ((False, (x,)), (True, (x, tokens))):
        module = layers.VTModule(3, 8, 4, recurrent=recurrent)
        feature_map, out, weights = module(*inputs, return_attention_scores=True)
        randomize(module, np.random.default_rng(0))
        assert len(module.weights) == 9 and weights.shape == (2, 3, 4, 5)
        feature_map, out = module(*inputs)
        expected = module.transformer(module.tokenizer(*inputs))
        np.testing.assert_array_equal(ops.convert_to_numpy(out), ops.convert_to_numpy(expected))
        expected = module.projector(x, expected)
        np.testing.assert_array_equal(ops.convert_to_numpy(feature_map), ops.convert_to_numpy(expected))
        again = layers.VTModule.from_config(module.get_config())
        shapes = again(*(keras.Input(each.shape[1:]) for each in inputs))
        assert [y.shape for y in shapes] == [(None, 4, 5, 6), (None, 3, 8)]


def test_vt_module_seed_gives_transformer_and_projector_theirs():
    module = layers.VTModule(3, 8, drop_path_rate=0.5, seed=7)
    assert [module.transformer.seed, module.projector.seed] == arguments.seeds(7, 2)
    x = np.random.default_rng(0).normal(size=(32, 2, 2, 4)).astype("float32")
    again = layers.VTModule(3, 8, drop_path_rate=0.5, seed=7)
    for each in (module, again):
        each.build(x.shape)
    again.set_weights(module.get_weights())
    for actual, expected in zip(again(x, training=True), module(x, training=True), strict=True):
        np.testing.assert_array_equal(*map(ops.convert_to_numpy, (actual, expected)))


def test_vt_module_config_keeps_lora():
    module = layers.VTModule(3, 8)
    x = np.ones(SHAPES[0], "float32")
    module(x)
    for dense in module.dense_layers():
        dense.enable_lora(2)
    again = layers.VTModule.from_config(module.get_config())
    again(x)
    assert len(module.dense_layers()) == 9 and len(again.weights) == 27
    assert [w.path.split("/", 1)[1] for w in again.weights] == [w.path.split("/", 1)[1] for w in module.weights]


def test_vt_module_unfitting_tokens_are_refused():
    x, tokens = map(np.zeros, SHAPES)
    refuses("Expected `tokens` to be None with recurrent=False. Received: tokens", layers.VTModule(3), x, tokens)
    three, four = (layers.VTModule(number, recurrent=True) for number in (3, 4))
    refuses("Expected `tokens` of shape.*3, token_dim.* Received: tokens of shape None", three, x)
    refuses("Expected `tokens` of shape.*4, token_dim", four, x, tokens)
