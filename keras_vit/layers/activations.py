"""Activations by name: Keras' own, and "gelu_tanh", which Keras has as a function but not under a name."""

import math

import keras
from keras import ops

from keras_vit.layers.backpropagation import recomputed
from keras_vit.layers.hardware import has_gpu


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


def apply(activation, x, training=False):
    """`activation(x)`. A GELU is computed as a backend's training is fastest on a CPU, of which it is a good part.

    TensorFlow compiles it there, but for narrow layers, which would gain nothing. JAX has the exact one by the
    complement of the error function, which XLA computes more slowly than the function itself.
    """
    if training and activation in (keras.activations.gelu, gelu_tanh):
        backend = keras.backend.backend()
        if backend == "tensorflow" and x.shape[-1] >= 768:
            return recomputed(activation, x)
        # In less than float32 the sum below would cancel.
        is_float32 = keras.backend.standardize_dtype(x.dtype) == "float32"
        if backend == "jax" and activation is keras.activations.gelu and is_float32 and not has_gpu():
            return x * (0.5 + 0.5 * ops.erf(x / math.sqrt(2)))
    return activation(x)
