"""Activations by name: Keras' own, and "gelu_tanh", which Keras has as a function but not under a name."""

import math

import keras
from keras import ops

from keras_vit.layers.backpropagation import recomputed
from keras_vit.layers.hardware import has_gpu

# The width of Ti/16's MLP: tinier models would wait for the compiler for nothing.
COMPILED_WIDTH = 768


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
    """`activation(x)`; in training on a CPU, of which GELUs take a good part, these in the backend's fastest way.

    TensorFlow compiles them, but for narrow layers. JAX has the exact one by the complement of the error function,
    which XLA computes more slowly than the function itself; their values differ by up to 4e-6.
    """
    if training and activation in (keras.activations.gelu, gelu_tanh):
        backend = keras.backend.backend()
        if backend == "tensorflow" and x.shape[-1] >= COMPILED_WIDTH:
            return recomputed(activation, x)
        # In less than float32 the sum below would cancel.
        is_float32 = keras.backend.standardize_dtype(x.dtype) == "float32"
        if backend == "jax" and activation is keras.activations.gelu and is_float32 and not has_gpu():
            return x * (0.5 + 0.5 * ops.erf(x / math.sqrt(2)))
    return activation(x)
