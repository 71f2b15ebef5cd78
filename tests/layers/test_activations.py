import keras
import numpy as np
import pytest
import scipy.special
from keras import ops

from keras_vit import activations as named
from keras_vit.inspection.gradients import gradients
from keras_vit.layers import activations

X = np.linspace(-6, 6, 201).astype("float32")


@pytest.mark.parametrize("identifier", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("width", [3, activations.COMPILED_WIDTH])
@pytest.mark.parametrize("training", [False, True])
def test_apply_is_the_activation(identifier, width, training):
    activation = named.get(identifier)
    x = ops.convert_to_tensor(np.resize(X, (5, width)))
    np.testing.assert_allclose(activations.apply(activation, x, training), activation(x), atol=2e-6)


def test_gradient_of_the_exact_gelu_in_training():
    x = np.resize(X, (2, activations.COMPILED_WIDTH))
    expected = 0.5 * scipy.special.erfc(-x / np.sqrt(2)) + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    gelu = keras.activations.gelu
    found = gradients(lambda x: ops.sum(activations.apply(gelu, x, training=True)), ops.convert_to_tensor(x))[0]
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("more, training, number", [(0, True, 1), (-1, True, 0), (0, False, 0)])
def test_tensorflow_compiles_wide_gelus_in_training(more, training, number, monkeypatch):
    called = []
    monkeypatch.setattr(activations, "recomputed", lambda function, x: called.append(function) or function(x))
    for identifier in ("gelu", "relu"):
        activations.apply(named.get(identifier), ops.ones((2, activations.COMPILED_WIDTH + more)), training)
    assert called == [keras.activations.gelu] * (number if keras.backend.backend() == "tensorflow" else 0)


def test_gelu_in_training_has_no_more_error_where_it_nearly_cancels():
    x = np.linspace(-12, -3, 200).astype("float32")
    expected = x * 0.5 * scipy.special.erfc(-x.astype("float64") / np.sqrt(2))
    for dtype, tolerance in {"float32": 4e-6, "bfloat16": 2e-4}.items():
        outputs = activations.apply(keras.activations.gelu, ops.cast(x, dtype), training=True)
        np.testing.assert_allclose(ops.cast(outputs, "float32"), expected, atol=tolerance)
