import numpy as np
from keras import ops

from keras_vit.layers.squeeze_excitation import SqueezeExcitation


def test_equals_the_formula():
    x = np.random.default_rng(0).normal(size=(2, 4, 3, 6)).astype("float32")
    layer = SqueezeExcitation(2, activation="relu")
    layer.build(x.shape)
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
    w1, b1, w2, b2 = (ops.convert_to_numpy(w) for w in layer.weights)
    gate = 1 / (1 + np.exp(-(np.maximum(x.mean((1, 2)) @ w1 + b1, 0) @ w2 + b2)))
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), x * gate[:, None, None], rtol=1e-5, atol=1e-6)
