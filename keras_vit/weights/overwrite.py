"""Replaces the values of a model that nobody has used yet, in little more than the memory of its weights.

New arrays beside old ones of other sizes would leave gaps of up to half as much.
"""

import keras
from keras import ops


def free(variables):
    """Frees values that are going to be replaced, on JAX; the variables cannot be read until then."""
    if keras.backend.backend() == "jax":
        for variable in variables:
            variable.value.delete()


def overwrite(variable, value):
    """Assigns a value; on TensorFlow's CPU, into the memory of the variable."""
    own = variable.value
    if (
        keras.backend.backend() != "tensorflow"
        # A strategy of `tf.distribute` has a copy for each device.
        or hasattr(own, "values")
        or "CPU" not in own.device
        # Assigned to a part, it would be repeated.
        or value.shape != tuple(variable.shape)
    ):
        variable.assign(value)
        return
    import tensorflow as tf

    own[...].assign(ops.cast(value, variable.dtype))
    # Else each later read of the variable would copy it.
    tf.raw_ops.DisableCopyOnRead(resource=own.handle)
