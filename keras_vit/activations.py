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


def name_of(activation):
    """Returns the name of one of Keras' activations or of this file's; any other as it is."""
    name = getattr(activation, "__name__", None)
    try:
        # Another function may be called as one of Keras' is: keras.ops.gelu is gelu_tanh.
        return name if isinstance(name, str) and get(name) is activation else activation
    except ValueError:
        return activation


def serialize(activation):
    """Returns what `get` turns back into an activation, given as such or by its name."""
    activation = name_of(activation)
    return activation if activation is None or isinstance(activation, str) else keras.activations.serialize(activation)
