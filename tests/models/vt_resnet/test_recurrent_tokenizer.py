import numpy as np
import pytest
from keras import ops
from scipy.special import softmax

from keras_vit.models.vt_resnet.layers import RecurrentTokenizer
from tests.contract import check_layer

SHAPES = [(2, 4, 5, 6), (2, 3, 8)]


def inputs():
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype("float32") for shape in SHAPES]


@pytest.mark.every_backend
def test_contract():
    check_layer(RecurrentTokenizer, {"token_dim": 8}, SHAPES, output_shape=(2, 3, 8), num_weights=2)


@pytest.mark.parametrize("token_dim", [None, 8])
def test_definition(token_dim):
    layer = RecurrentTokenizer(token_dim)
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


def test_scores_beyond_float16_stay_finite():
    layer = RecurrentTokenizer(dtype="mixed_float16")
    x, tokens = (500 * each for each in inputs())
    y, weights = (ops.convert_to_numpy(each) for each in layer(x, tokens, return_attention_scores=True))
    products = np.einsum("bhwc,blc->blhw", x, tokens @ ops.convert_to_numpy(layer.weights[0]))
    assert np.abs(products).max() > 65504 and np.isfinite(y).all()
    np.testing.assert_allclose(weights.sum(axis=(2, 3)), 1, rtol=1e-2)


def test_initial_scores_have_a_standard_deviation_below_1():
    layer = RecurrentTokenizer()
    rng = np.random.default_rng(0)
    x, tokens = rng.normal(size=(1, 14, 14, 256)), rng.normal(size=(1, 16, 256))
    layer.build(x.shape, tokens.shape)
    scores = np.einsum("bhwc,blc->blhw", x, tokens @ ops.convert_to_numpy(layer.weights[0]))
    # A variance of 1 / 3 of the filters, as in PyTorch's linear layers, over the number of channels.
    assert scores.std() == pytest.approx(3**-0.5, rel=0.2)
