"""Replaces the values of an unused model in little more than the memory of its weights.

New arrays next to old arrays of other sizes would leave gaps of up to half as much memory.
"""

import keras
from keras import ops


def free(variables):
    """Frees values on JAX before they are replaced; until then, the variables cannot be read."""
    if keras.backend.backend() == "jax":
        for variable in variables:
            variable.value.delete()


def overwrite(variable, value):
    """Assigns a value; TensorFlow on a CPU writes it into the memory of the variable."""
    own = variable.value
    if (
        keras.backend.backend() != "tensorflow"
        # With a strategy of `tf.distribute`, each device has a copy.
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
