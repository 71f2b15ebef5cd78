"""Replaces the weights of a new model in place, so that the memory never holds two copies of the weights."""

import keras
from keras import ops


def free(variables):
    """On JAX, frees the values of variables. Reading a variable then fails until it gets a new value."""
    if keras.backend.backend() == "jax":
        for variable in variables:
            variable.value.delete()


def overwrite(variable, value):
    """Assigns a value to a variable. With TensorFlow on a CPU, reuses the memory of the variable."""
    own = variable.value
    if (
        keras.backend.backend() != "tensorflow"
        # With a strategy of `tf.distribute`, each device has a copy of the variable.
        or hasattr(own, "values")
        or "CPU" not in own.device
        # A sliced assignment would broadcast a value of another shape.
        or value.shape != tuple(variable.shape)
    ):
        variable.assign(value)
        return
    import tensorflow as tf

    own[...].assign(ops.cast(value, variable.dtype))
    # After a sliced assignment, each read would copy the variable.
    tf.raw_ops.DisableCopyOnRead(resource=own.handle)
