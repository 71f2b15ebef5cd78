"""Finds activation functions by their names in Keras, and adds "gelu_tanh" and "quick_gelu"."""

import keras
from keras import ops

from keras_vit import arguments


@keras.saving.register_keras_serializable(package="keras_vit")
def gelu_tanh(x):
    """Computes GELU with the tanh approximation, as in the official Flax code (Keras' "gelu" is exact)."""
    return ops.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="keras_vit")
def quick_gelu(x):
    """Approximates GELU by `x * sigmoid(1.702 * x)`, as in OpenAI's CLIP."""
    return x * ops.sigmoid(1.702 * x)


# Models that version 0.2 saved contain the name "relu_with_nan" for ReLU.
keras.saving.get_custom_objects()["keras_vit>relu_with_nan"] = keras.activations.relu
_OWN = {"gelu_tanh": gelu_tanh, "quick_gelu": quick_gelu}


def get(identifier, argument="activation"):
    """Returns the activation function for a name, config or callable. `argument` is its argument name in errors."""
    if isinstance(identifier, str) and identifier in _OWN:
        return _OWN[identifier]
    expected = 'the name of a Keras activation, "gelu_tanh", "quick_gelu" or a function'
    return arguments.found(argument, identifier, keras.activations.get, expected)


def name_or_function(activation):
    """Returns the name of an activation function if `get` finds the function by this name, else the function."""
    name = getattr(activation, "__name__", None)
    try:
        # keras.ops.gelu is named "gelu" too, but is the tanh approximation.
        return name if isinstance(name, str) and get(name) is activation else activation
    except ValueError:
        return activation


def serialize(activation):
    """Returns the name or config of an activation, from which `get` restores it."""
    activation = name_or_function(activation)
    return activation if activation is None or isinstance(activation, str) else keras.activations.serialize(activation)
