import numpy as np
import pytest
from keras import ops
from scipy.special import softmax

from keras_vit.models.vt_resnet.layers import TokenProjector
from tests.contract import check_layer, randomize


@pytest.mark.every_backend
def test_contract():
    arguments, shapes = {"key_dim": 4, "drop_path_rate": 0.2, "seed": 8}, [(2, 4, 5, 6), (2, 3, 8)]
    check_layer(TokenProjector, arguments, shapes, output_shape=(2, 4, 5, 6), num_weights=3, num_seeds=1)


@pytest.mark.parametrize("key_dim, token_dim", [(None, 6), (4, 8)])
def test_definition(key_dim, token_dim):
    layer = TokenProjector(key_dim)
    rng = np.random.default_rng(0)
    x, tokens = rng.normal(size=(2, 4, 5, 6)), rng.normal(size=(2, 3, token_dim))
    layer.build(x.shape, tokens.shape)
    randomize(layer, rng, scale=0.5)
    query, key, *value = (ops.convert_to_numpy(w).astype("float64") for w in layer.weights)
    for i, y in enumerate(ops.convert_to_numpy(layer(x, tokens))):
        weights = softmax((x[i].reshape(20, 6) @ query) @ (tokens[i] @ key).T, axis=1)
        added = weights @ (tokens[i] @ value[0] if value else tokens[i])
        np.testing.assert_allclose(y, x[i] + added.reshape(4, 5, 6), rtol=1e-4, atol=1e-4)


def test_drop_path_drops_residual_per_image():
    layer = TokenProjector(drop_path_rate=0.5, seed=0)
    y = layer(np.zeros((100, 2, 2, 3), "float32"), np.ones((100, 4, 3), "float32"), training=True)
    found = ops.convert_to_numpy(y).reshape(100, -1)
    assert (found == found[:, :1]).all() and set(found[:, 0].round(4).tolist()) == {0, 2}
