import numpy as np
from keras import ops

from keras_vit.layers import LayerScale


def test_each_channel_has_its_factor():
    layer = LayerScale()
    layer.build((None, 3, 4))
    np.testing.assert_array_equal(ops.convert_to_numpy(layer.gamma), np.full(4, 1e-5, "float32"))
    layer.gamma.assign([1.0, 2.0, 0.0, -1.0])
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(x)), x * np.array([1, 2, 0, -1], "float32"))
