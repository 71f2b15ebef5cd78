"""Activations by name: Keras' own, and "gelu_tanh", which Keras has as a function but not under a name."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
def gelu_tanh(x):
    """The tanh approximation of GELU, which the official Flax code uses (Keras' "gelu" is the exact one)."""
    return ops.gelu(x, approximate=True)


def get(identifier):
    """Returns the activation that a name, config or callable stands for."""
    return gelu_tanh if identifier == "gelu_tanh" else keras.activations.get(identifier)


def serialize(activation):
    """Returns what `get` turns back into `activation`."""
    return "gelu_tanh" if activation is gelu_tanh else keras.activations.serialize(activation)
