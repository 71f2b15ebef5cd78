import keras
import numpy as np
import pytest
import scipy.special
from keras import ops

from keras_vit import activations

X = np.linspace(-6, 6, 201).astype("float32")


def test_gelu_tanh_is_the_tanh_approximation():
    expected = 0.5 * X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)))
    np.testing.assert_allclose(ops.convert_to_numpy(activations.gelu_tanh(X)), expected, atol=1e-6)


def test_quick_gelu():
    expected = X / (1 + np.exp(-1.702 * X))
    np.testing.assert_allclose(
        ops.convert_to_numpy(activations.get("quick_gelu")(ops.convert_to_tensor(X))), expected, atol=1e-6
    )


def test_relu_with_nan():
    actual = ops.convert_to_numpy(activations.relu_with_nan(ops.convert_to_tensor([-1.0, 0.0, 2.0, np.nan])))
    np.testing.assert_array_equal(actual, [0, 0, 2, np.nan])


def test_gelu_is_exact():
    expected = X * 0.5 * (1 + scipy.special.erf(X / np.sqrt(2)))
    actual = ops.convert_to_numpy(activations.get("gelu")(X))
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    # The two are told apart by far more than the tolerance.
    assert np.abs(actual - ops.convert_to_numpy(activations.gelu_tanh(X))).max() > 1e-4


@pytest.mark.parametrize("identifier", ["gelu_tanh", "quick_gelu", "gelu", "relu", "linear", keras.activations.silu])
def test_round_trip(identifier):
    activation = activations.get(identifier)
    assert activations.get(activations.serialize(activation)) is activation


def test_names_in_configs():
    assert activations.serialize(activations.gelu_tanh) == "gelu_tanh"
    assert activations.serialize(keras.activations.gelu) == "gelu"
    assert activations.get(None) is keras.activations.linear


def test_unknown_name():
    with pytest.raises(ValueError, match="gelu_tahn"):
        activations.get("gelu_tahn")


def test_only_what_a_name_stands_for_is_called_by_it():
    # It is the approximation, though it has the name of the exact one.
    assert activations.name_of(keras.ops.gelu) is keras.ops.gelu
    assert activations.name_of(keras.ops.square) is keras.ops.square
    assert activations.name_of(keras.activations.gelu) == "gelu" and activations.name_of(None) is None
