"""What makes the gradients of TensorFlow and JAX on a CPU take less time; the values stay what they are."""

import functools

import keras
from keras import ops

from keras_vit.layers.hardware import has_gpu


def materialize(x):
    """`x`, which JAX on a CPU writes to memory in one place, as it then does with its gradient. Elsewhere `x` itself.

    Each block adds to the tokens, so the gradient of the first ones is a sum over all blocks. XLA computes such a sum
    anew wherever it is needed, three times a block; but it moves none into a condition that it cannot decide. Without
    this a training step of ViT-B/16 takes 6% longer, and more time to compile.
    """
    if keras.backend.backend() != "jax" or has_gpu() or 0 in x.shape:
        return x
    first = x[(0,) * len(x.shape)]
    # Never chosen but for a first number that is NaN, and the same value then too, if not the gradient at zero.
    return ops.cond(first == first, lambda: x, lambda: ops.abs(x) * ops.sign(x))


def recomputed(function, x):
    """`function(x)` for a function of each number by itself, whose gradient on TensorFlow needs `x` alone.

    XLA compiles both passes, in a tenth of a second for each new number of rows. So each is one over memory, where
    TensorFlow makes one for every operation: ten for the gradient of a GELU. Elsewhere, and without XLA, `function(x)`
    as it is.
    """
    if keras.backend.backend() != "tensorflow" or has_gpu() or not _has_xla():
        return function(x)
    return _recomputed(function)(x)


@functools.cache
def _recomputed(function):
    import tensorflow as tf

    # XLA's programs are of one shape each; the traces they are made of need not be.
    @tf.function(jit_compile=True, reduce_retracing=True)
    def forward(x):
        return function(x)

    @tf.function(jit_compile=True, reduce_retracing=True)
    def backward(x, gradient):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = function(x)
        return tape.gradient(outputs, x, gradient)

    @tf.custom_gradient
    def run(x):
        return forward(x), functools.partial(backward, x)

    return run


@functools.cache
def _has_xla():
    """Whether this TensorFlow compiles for a CPU, which not each build does."""
    import tensorflow as tf

    with tf.init_scope():
        try:
            return bool(tf.function(lambda x: x > 0, jit_compile=True)(tf.ones([])))
        except (tf.errors.OpError, ValueError):
            return False
