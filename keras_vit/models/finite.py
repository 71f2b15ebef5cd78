"""Finds weights that are NaN or infinite."""

import keras
from keras import ops


def non_finite_weights(model):
    """Returns the paths of a model's weights that contain NaN or infinity.

    The outputs may be finite although weights are not: TensorFlow's ReLU after a convolution can turn NaN into 0.
    """
    floats = [variable for variable in model.weights if keras.backend.is_float_dtype(variable.dtype)]
    return [variable.path for variable in floats if not bool(ops.all(ops.isfinite(variable.value)))]
