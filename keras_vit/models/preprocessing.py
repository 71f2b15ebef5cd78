import keras
import numpy as np

from keras_vit.layers import ImageNormalization
from keras_vit.models.inputs import in_unit_range
from keras_vit.preprocessing import carrier_of


def preprocess_input(x, model: keras.Model | None = None):
    """Scales images of 0..255 as a model expects them.

    Args:
        x: Images, (..., height, width, channels), of 0..255, as uint8 or floats: a NumPy array, a tensor of the
            backend, or a tf.data element on any backend.
        model: A model of this package, whose `normalization` layer has the constants. Without one, images become
            [-1, 1], as the official checkpoints expect. A model built with `include_preprocessing=True` scales images
            itself, and they stay as they are.

    Returns:
        Float32 images of the same shape and kind.

    Raises:
        ValueError: If the model carries no preprocessing constants, or the array holds values outside 0..255, or only
            fractions in 0..1, as images that were scaled already.

    Example:

    >>> keras_vit.preprocess_input(np.array([[[0, 255, 255]]], "uint8")).tolist()
    [[[-1.0, 1.0, 1.0]]]

    Reference: the official checkpoints' own preprocessing, `(x - 127.5) / 127.5`.
    """
    if isinstance(x, (list, tuple, np.ndarray)) and in_unit_range(x):
        raise ValueError(
            f"Expected images of 0..255. Received: values from {np.min(x)} to {np.max(x)}, which look like images "
            "scaled to 0..1: multiply them by 255."
        )
    return scaled(x, model)


def scaled(x, model=None):
    """`preprocess_input` for images that are known to be of 0..255, even if nearly black."""
    layer = ImageNormalization() if model is None else normalization_of(model)
    scaled_by_model = model is not None and layer.apply
    if isinstance(x, (list, tuple, np.ndarray)):
        x = np.asarray(x, "float32")
        if x.size and not (x.min() >= 0 and x.max() <= 255):
            raise ValueError(f"Expected images of 0..255. Received: values from {x.min()} to {x.max()}")
        return x if scaled_by_model else np.asarray(layer.normalize(x), "float32")
    # Rescaling, unlike keras.ops, also works on the tensors of a tf.data pipeline, on any backend.
    if scaled_by_model:
        scale, offset = 1.0, 0.0
    else:
        # Three dimensions, since Keras would take one for the first axis under image_data_format="channels_first".
        constants = layer.preprocessing.offset_and_scale
        offset, scale = (np.reshape(np.array(c, "float32"), (1, 1, -1)) for c in constants)
        scale, offset = 1 / scale, -offset / scale
    return keras.layers.Rescaling(scale, offset, dtype="float32")(x)


def normalization_of(model):
    """The layer of a model, or of one within it, that carries the preprocessing constants; raises if there is none."""
    layer = carrier_of(model)
    if layer is None:
        raise ValueError(
            "Expected a model with a `normalization` layer of this package. "
            f"Received: model {model.name!r} without one."
        )
    return layer
