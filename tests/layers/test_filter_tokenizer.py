import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops
from scipy.special import softmax

from keras_vit.layers import FilterTokenizer
from tests.contract import check_layer


def built(**arguments):
    layer = FilterTokenizer(**arguments)
    layer.build((None, 4, 5, 6))
    return layer, [ops.convert_to_numpy(w).astype("float64") for w in layer.weights]


@pytest.mark.parametrize("token_dim, num_weights", [(None, 1), (6, 1), pytest.param(7, 2, marks=pytest.mark.every_backend)])
def test_contract(token_dim, num_weights):
    arguments = {"num_tokens": 3, "token_dim": token_dim}
    check_layer(FilterTokenizer, arguments, (2, 4, 5, 6), output_shape=(2, 3, token_dim or 6), num_weights=num_weights)


@pytest.mark.parametrize("token_dim", [None, 7])
def test_definition(token_dim):
    layer, (filters, *value) = built(num_tokens=3, token_dim=token_dim)
    x = np.random.default_rng(0).normal(size=(2, 4, 5, 6))
    for image, y in zip(x, ops.convert_to_numpy(layer(x)), strict=True):
        pixels = image.reshape(20, 6)
        expected = softmax(pixels @ filters, axis=0).T @ pixels
        np.testing.assert_allclose(y, expected @ value[0] if value else expected, rtol=1e-5, atol=1e-5)


def test_attention_is_that_of_each_token_over_the_pixels():
    layer, (filters,) = built(num_tokens=3)
    x = np.random.default_rng(0).normal(size=(2, 4, 5, 6)).astype("float32")
    tokens, weights = map(ops.convert_to_numpy, layer(x, return_attention_scores=True))
    assert weights.shape == (2, 3, 4, 5)
    np.testing.assert_allclose(weights.sum(axis=(2, 3)), 1, rtol=1e-5)
    np.testing.assert_allclose(weights, np.moveaxis(softmax(x @ filters, axis=(1, 2)), -1, 1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.einsum("blhw,bhwc->blc", weights, x), tokens, rtol=1e-4, atol=1e-5)


@given(st.permutations(range(12)))
def test_the_order_of_pixels_does_not_matter(order):
    layer, _ = built(num_tokens=3)
    x = np.random.default_rng(0).normal(size=(1, 3, 4, 6)).astype("float32")
    permuted = x.reshape(1, 12, 6)[:, order].reshape(x.shape)
    np.testing.assert_allclose(*(ops.convert_to_numpy(layer(each)) for each in (x, permuted)), rtol=1e-5, atol=1e-5)


def test_large_scores_stay_finite_in_float16():
    layer = FilterTokenizer(3, dtype="mixed_float16")
    y = ops.convert_to_numpy(layer(np.random.default_rng(0).normal(scale=3000, size=(2, 4, 5, 6)).astype("float16")))
    assert np.isfinite(y).all()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_tokens": 0}, "`num_tokens`. Expected an integer of at least 1. Received: 0"),
        ({"num_tokens": 3, "token_dim": 1.5}, "`token_dim`. Expected an integer of at least 1. Received: 1.5"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        FilterTokenizer(**arguments)
