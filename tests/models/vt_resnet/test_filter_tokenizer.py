import numpy as np
import pytest
from keras import ops
from scipy.special import softmax

from keras_vit.models.vt_resnet.layers import FilterTokenizer
from tests.contract import check_layer


def built(**arguments):
    layer = FilterTokenizer(**arguments)
    layer.build((None, 4, 5, 6))
    return layer, [ops.convert_to_numpy(w).astype("float64") for w in layer.weights]


@pytest.mark.every_backend
def test_contract():
    arguments = {"num_tokens": 3, "token_dim": 7}
    check_layer(FilterTokenizer, arguments, (2, 4, 5, 6), output_shape=(2, 3, 7), num_weights=2)


@pytest.mark.parametrize("token_dim", [None, 6, 7])
def test_definition(token_dim):
    layer, (filters, *value) = built(num_tokens=3, token_dim=token_dim)
    assert len(value) == (token_dim == 7)
    x = np.random.default_rng(0).normal(size=(2, 4, 5, 6))
    tokens, weights = map(ops.convert_to_numpy, layer(x, return_attention_scores=True))
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(x)), tokens)
    for image, y, scores in zip(x, tokens, weights, strict=True):
        pixels = image.reshape(20, 6)
        attention = softmax(pixels @ filters, axis=0).T
        expected = attention @ pixels
        np.testing.assert_allclose(y, expected @ value[0] if value else expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(scores, attention.reshape(3, 4, 5), rtol=1e-4, atol=1e-6)


def test_large_scores_stay_finite_in_float16():
    layer = FilterTokenizer(3, dtype="mixed_float16")
    y = ops.convert_to_numpy(layer(np.random.default_rng(0).normal(scale=3000, size=(2, 4, 5, 6)).astype("float16")))
    assert np.isfinite(y).all()
