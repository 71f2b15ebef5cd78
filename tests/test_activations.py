import keras
import numpy as np
import pytest
import scipy.special
from keras import ops

from keras_vit import activations

X = np.linspace(-6, 6, 201).astype("float32")
DEFINITIONS = {
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "gelu": lambda x: x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2))),
}


@pytest.mark.every_backend
@pytest.mark.parametrize("name", DEFINITIONS)
def test_activation_follows_its_definition(name):
    actual = ops.convert_to_numpy(activations.get(name)(ops.convert_to_tensor(X)))
    np.testing.assert_allclose(actual, DEFINITIONS[name](X), atol=1e-6)


@pytest.mark.parametrize("identifier", ["gelu_tanh", "quick_gelu", "gelu", "relu", "linear", keras.activations.silu])
def test_serialized_activation_is_the_same_function(identifier):
    activation = activations.get(identifier)
    assert activations.get(activations.serialize(activation)) is activation


def test_activation_names_in_configs():
    assert activations.serialize(activations.gelu_tanh) == "gelu_tanh"
    assert activations.serialize(keras.activations.gelu) == "gelu"
    assert activations.get(None) is keras.activations.linear
    with pytest.raises(ValueError, match="gelu_tahn"):
        activations.get("gelu_tahn")
    # `keras.ops.gelu` is the approximation, although it has the name of the exact function.
    for function in (keras.ops.gelu, keras.ops.square, None):
        assert activations.name_or_function(function) is function
