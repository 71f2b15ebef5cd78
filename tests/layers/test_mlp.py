import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import MLP
from tests.test_activations import DEFINITIONS

OTHERS = {"relu": lambda x: np.maximum(x, 0), keras.activations.tanh: np.tanh}


@pytest.mark.parametrize("activation, reference", (DEFINITIONS | OTHERS).items())
def test_definition(activation, reference):
    layer = MLP(12, activation=activation)
    layer.build((None, 5, 8))
    rng = np.random.default_rng(0)
    w1, b1, w2, b2 = weights = [rng.normal(size=w.shape) for w in layer.weights]
    layer.set_weights(weights)
    x = rng.normal(size=(2, 5, 8))
    expected = reference(x @ w1 + b1) @ w2 + b2
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, rtol=1e-5, atol=1e-5)


def test_swiglu_with_an_inner_norm():
    arguments = {"mlp_dim": 12, "activation": "silu", "gated": True, "inner_norm": True, "layer_norm_epsilon": 1e-3}
    layer = MLP(**arguments)
    layer.build((None, 5, 8))
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=w.shape) for w in layer.weights]
    layer.set_weights(weights)
    found = {w.path.split("/", 1)[-1]: value for w, value in zip(layer.weights, weights, strict=True)}
    x = rng.normal(size=(2, 5, 8))
    gate, value = np.split(x @ found["dense_1/kernel"] + found["dense_1/bias"], 2, axis=-1)
    hidden = gate / (1 + np.exp(-gate)) * value
    hidden = (hidden - hidden.mean(-1, keepdims=True)) / np.sqrt(hidden.var(-1, keepdims=True) + 1e-3)
    hidden = hidden * found["norm/gamma"] + found["norm/beta"]
    expected = hidden @ found["dense_2/kernel"] + found["dense_2/bias"]
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, rtol=1e-4, atol=1e-4)


def test_dropout_acts_after_both_dense_layers():
    rate = 0.5
    layer = MLP(200, activation="linear", dropout_rate=rate, seed=0)
    layer.build((None, 1, 4))
    layer.set_weights([np.ones((4, 200)), np.zeros(200), np.ones((200, 4)), np.zeros(4)])
    y = ops.convert_to_numpy(layer(np.full((2000, 1, 4), 0.25, "float32"), training=True))
    assert abs((y == 0).mean() - rate) < 0.03
    # Outputs that are not dropped are 2 times a sum of 200 hidden units, each 0 or 2: mean 400, standard deviation 28.
    assert abs(y[y != 0].mean() - 400) < 3
    assert abs(y[y != 0].std() - np.sqrt(200) * 2) < 3
