import numpy as np
import pytest
from keras import ops
from scipy.special import softmax

from keras_vit.models.vt_resnet.layers import TokenTransformer
from tests.contract import check_layer, randomize


@pytest.mark.every_backend
def test_contract():
    arguments = {"key_dim": 4, "drop_path_rate": 0.2, "seed": 8}
    check_layer(TokenTransformer, arguments, (3, 5, 8), output_shape=(3, 5, 8), num_weights=4, num_seeds=2)


@pytest.mark.parametrize("key_dim", [None, 4])
def test_definition(key_dim):
    layer = TokenTransformer(key_dim)
    layer.build((None, 5, 8))
    randomize(layer, np.random.default_rng(0), scale=0.5)
    key, query, first, second = (ops.convert_to_numpy(w).astype("float64") for w in layer.weights)
    x = np.random.default_rng(1).normal(size=(2, 5, 8))
    for tokens, y in zip(x, ops.convert_to_numpy(layer(x)), strict=True):
        tokens = tokens + softmax((tokens @ key) @ (tokens @ query).T, axis=1) @ tokens
        expected = tokens + np.maximum(tokens @ first, 0) @ second
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_initial_scores_equal_scaled_attention():
    layer = TokenTransformer(key_dim=64)
    layer.build((None, 16, 128))
    key, query, *_ = map(ops.convert_to_numpy, layer.weights)
    x = np.random.default_rng(0).normal(size=(16, 128))
    # Keys and queries have a variance of 1 / 3 before the division, as after PyTorch's linear layers.
    assert ((x @ key) @ (x @ query).T).std() == pytest.approx(1 / 3, rel=0.2)


def test_drop_path_drops_branches_independently():
    layer = TokenTransformer(drop_path_rate=0.5, seed=0)
    x = np.full((200, 2, 2), 1, "float32")
    layer.build(x.shape)
    layer.set_weights([np.zeros((2, 2)), np.zeros((2, 2)), np.eye(2), np.eye(2)])
    found = ops.convert_to_numpy(layer(x, training=True))[:, 0, 0]
    # A kept branch counts twice: the attention adds 0 or 2, and then what there is is added 0 or 2 times.
    assert set(found.tolist()) == {1, 3, 9}
