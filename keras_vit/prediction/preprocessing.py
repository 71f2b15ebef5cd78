import os

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.config import find_normalization
from keras_vit.layers import ImageNormalization
from keras_vit.prediction.inputs import in_unit_range, real_array

_REFUSED = "Invalid value received for argument `x`. Expected images of 0..255."


def preprocess_input(x, model: keras.Model | None = None):
    """Scales images of 0..255 to the values that a model takes, as float32.

    Args:
        x: Images, (..., height, width, channels), uint8 or float: a NumPy array, a backend tensor or, on any backend,
            a tf.data element. The result is of the same kind and shape.
        model: A model of this package. Its preprocessing constants scale the images. If the model has
            `include_preprocessing=True`, images stay in 0..255. If None, images are scaled to [-1, 1], as the official
            checkpoints expect.

    Raises:
        ValueError: If the model has no preprocessing constants or takes another number of channels, or if the values of
            an array are outside 0..255 or look already scaled to 0..1.

    Example:

    >>> keras_vit.preprocess_input(np.array([[[0, 255, 255]]], "uint8")).tolist()
    [[[-1.0, 1.0, 1.0]]]
    """
    if isinstance(x, (str, os.PathLike)):
        raise arguments.invalid("x", "an array of images, as keras_vit.read_image(path, model) reads from a file", x)
    if isinstance(x, np.ndarray) or not hasattr(x, "shape"):
        x = real_array("x", x, finite=False)
        if x.ndim < 3:
            raise arguments.invalid("x", "images of shape (..., height, width, channels)", x)
    if isinstance(x, np.ndarray) and in_unit_range(x):
        received = f"values from {np.min(x)} to {np.max(x)}, which look scaled to 0..1: multiply them by 255"
        raise ValueError(f"{_REFUSED} Received: {received}.")
    return scaled(x, model)


def scaled(x, model=None):
    """Scales images as `preprocess_input` does, without the check for images in 0..1."""
    layer = ImageNormalization() if model is None else require_normalization(model)
    scaled_by_model = model is not None and layer.apply
    if (channels := np.shape(x)[-1]) is not None:
        # Gray images would otherwise be broadcast to the channels of the constants.
        layer.preprocessing.check_channels(channels)
    if isinstance(x, (list, tuple, np.ndarray)):
        x = np.asarray(x, "float32")
        if x.size and not (x.min() >= 0 and x.max() <= 255):
            raise ValueError(f"{_REFUSED} Received: values from {x.min()} to {x.max()}")
        return x if scaled_by_model else np.asarray(layer.normalize(x), "float32")
    # Rescaling, unlike keras.ops, also works in tf.data pipelines on any backend.
    if scaled_by_model:
        scale, offset = 1.0, 0.0
    else:
        # Make the constants 3-D. If image_data_format="channels_first", Keras would apply a vector to the first axis.
        constants = layer.preprocessing.offset_and_scale
        offset, scale = (np.reshape(np.array(c, "float32"), (1, 1, -1)) for c in constants)
        scale, offset = 1 / scale, -offset / scale
    rescaling = keras.layers.Rescaling(scale, offset, dtype="float32")
    if keras.backend.backend() == "torch" and ops.is_tensor(x):
        # Keras creates the constants on its own device. The images may be on another device, for example if they come
        # from a `DataLoader`.
        with keras.device(str(x.device)):
            return rescaling(x)
    return rescaling(x)


def require_normalization(model):
    """Returns the layer with the preprocessing constants, at any depth of the model; raises if there is none."""
    layer = find_normalization(model)
    if layer is None:
        raise ValueError(f"Expected a model with a `normalization` layer of keras_vit. Received: model {model.name!r}")
    return layer
