import numpy as np
from keras import ops

from keras_vit.layers.class_token import PrefixTokens


def test_puts_its_tokens_before_the_sequence():
    layer = PrefixTokens(2)
    layer.build((None, 3, 4))
    tokens = np.arange(8, dtype="float32").reshape(1, 2, 4)
    layer.set_weights([tokens])
    x = np.random.default_rng(0).normal(size=(5, 3, 4)).astype("float32")
    y = ops.convert_to_numpy(layer(x))
    np.testing.assert_array_equal(y[:, 2:], x)
    np.testing.assert_array_equal(y[:, :2], np.repeat(tokens, 5, axis=0))
