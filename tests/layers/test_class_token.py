import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers.class_token import ClassToken, PrefixTokens
from tests.contract import check_layer


@pytest.mark.parametrize(
    "cls, arguments, added",
    [
        (ClassToken, {}, 1),
        pytest.param(PrefixTokens, {"num_tokens": 4}, 4, marks=pytest.mark.every_backend),
        (PrefixTokens, {"num_tokens": 2, "initializer": keras.initializers.RandomNormal(stddev=0.1)}, 2),
    ],
)
def test_contract(cls, arguments, added):
    check_layer(cls, arguments, (3, 5, 8), output_shape=(3, 5 + added, 8), num_weights=1)


def test_puts_its_tokens_before_the_sequence():
    layer = PrefixTokens(2)
    layer.build((None, 3, 4))
    tokens = np.arange(8, dtype="float32").reshape(1, 2, 4)
    layer.set_weights([tokens])
    x = np.random.default_rng(0).normal(size=(5, 3, 4)).astype("float32")
    y = ops.convert_to_numpy(layer(x))
    np.testing.assert_array_equal(y[:, 2:], x)
    for image in y:
        np.testing.assert_array_equal(image[:2], tokens[0])


def test_initial_token_is_zero():
    layer = ClassToken()
    layer.build((None, 3, 4))
    np.testing.assert_array_equal(ops.convert_to_numpy(layer.tokens), np.zeros((1, 1, 4)))
