"""Activations in the fastest way that a backend has for them in training."""

import math

import keras
from keras import ops

from keras_vit.activations import gelu_tanh
from keras_vit.layers.backpropagation import recomputed
from keras_vit.layers.hardware import has_gpu

# The width of Ti/16's MLP: tinier models would wait for the compiler for nothing.
COMPILED_WIDTH = 768


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
