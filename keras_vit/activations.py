"""Activations by name: those of Keras, plus "gelu_tanh", which Keras has only as a function."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
def gelu_tanh(x):
    """GELU with the tanh approximation, as in the official Flax code (Keras' "gelu" is exact)."""
    return ops.gelu(x, approximate=True)


def get(identifier):
    """Returns the activation for a name, config or callable."""
    return gelu_tanh if identifier == "gelu_tanh" else keras.activations.get(identifier)


def name_of(activation):
    """Returns the name of an activation that `get` knows by name; returns any other unchanged."""
    name = getattr(activation, "__name__", None)
    try:
        # keras.ops.gelu is named "gelu" too, but is the tanh approximation.
        return name if isinstance(name, str) and get(name) is activation else activation
    except ValueError:
        return activation


def serialize(activation):
    """Returns the name or config of an activation, which `get` turns back into it."""
    activation = name_of(activation)
    return activation if activation is None or isinstance(activation, str) else keras.activations.serialize(activation)
