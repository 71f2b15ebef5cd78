"""Whether images have the size and the values that a model takes."""

import keras
import numpy as np

from keras_vit.models.graph import is_graph, operations_before
from keras_vit.preprocessing import carrier_of

# How far resized images may leave 0..255: bicubic and Lanczos kernels overshoot at edges.
OVERSHOOT = 64
# Layers that change places and not values, or keep them in their range.
KEEP_SCALE = (
    keras.layers.InputLayer,
    keras.layers.Identity,
    keras.layers.Resizing,
    keras.layers.CenterCrop,
    keras.layers.Dropout,
    *(getattr(keras.layers, name) for name in dir(keras.layers) if name.startswith("Random")),
)
# The mean, of images scaled to 0..1, below which they are nearly black.
DARK = 0.05


def graph_of(model):
    """The graph of a model: itself, or the one model that a trainer around it has, as `keras_vit.training.SAM`.

    Args:
        model: A `keras.Model`.

    Returns:
        A functional or sequential `keras.Model`; None where there is none, or several.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> graph_of(keras_vit.training.SAM(model)) is model
    True
    """
    while not is_graph(model):
        models = [layer for layer in model.layers if isinstance(layer, keras.Model)]
        if len(models) != 1:
            return None
        (model,) = models
    return model


def takes(expected, received):
    """Whether a shape is one that a model takes, whose own holds None for any number."""
    return len(expected) == len(received) and all(e in (None, r) for e, r in zip(expected, received, strict=True))


def range_of(model):
    """The values that a model takes, as its `normalization` layer says.

    Args:
        model: A `keras.Model`, of this package or around one of its models.

    Returns:
        (lowest, highest): (0.0, 255.0) where the model scales images itself, else what its preprocessing makes of 0
        and 255, (-1.0, 1.0) for the official checkpoints. None where there is no such layer, or layers before it
        change the images.

    Example:

    >>> range_of(keras_vit.ViT("Ti/16", image_size=32, num_layers=1))
    (-1.0, 1.0)
    """
    layer, graph = carrier_of(model), graph_of(model)
    if layer is None:
        return None
    before = None if graph is None else operations_before(graph, layer)
    if before is None or not all(isinstance(operation, KEEP_SCALE) for operation in before):
        return None
    if layer.apply:
        return 0.0, 255.0
    offset, scale = (np.array(constants) for constants in layer.preprocessing.offset_and_scale)
    return float(np.min((0 - offset) / scale)), float(np.max((255 - offset) / scale))


def in_unit_range(images):
    """Whether an array is of images in 0..1: fractions, none of them above 1. One nearly black may be of 0..255.

    Example:

    >>> in_unit_range(np.array([0.0, 0.5, 1.0])), in_unit_range(np.zeros(3))
    (True, False)
    """
    images = np.asarray(images)
    if not images.size or images.dtype.kind in "biu" or not (images.min() >= 0 and images.max() <= 1):
        return False
    return bool((images % 1 != 0).any()) and float(images.mean()) > DARK


def check_values(model, images):
    """Checks that images have the values that a model takes.

    Args:
        model: A `keras.Model`. Where nothing is known of what it takes, only NaN and infinity are refused.
        images: Array of a few batches or one, (..., height, width, channels). The more there are, the surer.

    Returns:
        A text that says what is strange and may be meant; None if nothing is.

    Raises:
        ValueError: If the values cannot be meant: scaled images where the model scales them itself, images of 0..255
            where it does not, or numbers that are not finite.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> check_values(model, np.full((1, 32, 32, 3), np.inf))
    Traceback (most recent call last):
    ValueError: Expected images of finite numbers. Received: values from inf to inf
    >>> print(check_values(model, np.full((1, 32, 32, 3), 0.5)))
    Expected images of -1 to 1, as the model takes them. Received: values from 0.5 to 0.5, which look like images
    scaled to 0..1
    """
    images = np.asarray(images)
    images = images if images.dtype.kind in "biu" else images.astype("float32")
    if not images.size:
        return None
    low, high = float(images.min()), float(images.max())
    if not np.isfinite([low, high]).all():
        raise ValueError(f"Expected images of finite numbers. Received: values from {low:g} to {high:g}")
    taken = range_of(model)
    if taken is None:
        return None
    lowest, highest = taken
    received = f"Received: values from {low:g} to {high:g}"
    expected = f"Expected images of {lowest:g} to {highest:g}, as the model takes them. {received}"
    if carrier_of(model).apply:
        if in_unit_range(images) or (low < 0 and high <= 10):
            raise ValueError(f"{expected}. It was built with include_preprocessing=True and scales images itself.")
        return expected if low < -OVERSHOOT or high > 255 + OVERSHOOT else None
    width = highest - lowest
    if low >= 0 and 2 * width + highest < high <= 255 + OVERSHOOT:
        raise ValueError(
            f"{expected}. keras_vit.preprocess_input(images, model) scales them, and so does a model that is built "
            "with include_preprocessing=True."
        )
    # Images in units of their own, or scaled with the constants of others; augmentation may leave the range a little.
    if low < lowest - width / 4 or high > highest + width / 4:
        return expected
    if lowest < -0.1 and in_unit_range(images):
        return f"{expected}, which look like images scaled to 0..1"
    return None
