"""Checks a model's inputs: batches, image sizes and value ranges."""

import contextlib
import logging
import os

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.config import find_normalization
from keras_vit.models.graph import is_graph, operations_before
from keras_vit.models.running import check_size

logger = logging.getLogger("keras_vit")

# Values of resized images may be this far outside 0..255, because bicubic and Lanczos kernels overshoot at edges.
OVERSHOOT = 64
# Layers that keep the value range.
KEEP_SCALE = (
    keras.layers.InputLayer,
    keras.layers.Identity,
    keras.layers.Resizing,
    keras.layers.CenterCrop,
    keras.layers.Dropout,
    *(getattr(keras.layers, name) for name in dir(keras.layers) if name.startswith("Random")),
)
# Images in 0..1 with a mean up to this value may be nearly black images of 0..255, so do not report them as scaled.
DARK = 0.05


def refuse_trainer(model):
    """Raises ValueError for an object that only trains another model, such as `SAM`."""
    if hasattr(model, "plain_model"):
        raise arguments.invalid("model", "the model itself", type(model).__name__, advice="Pass its `plain_model`")


def to_numpy(x):
    """Converts a tensor of the backend or tf.data, an array or nested lists to NumPy."""
    return np.asarray(ops.convert_to_numpy(x) if ops.is_tensor(x) else x)


def real_array(name, value, finite=True):
    """Returns `value` as a NumPy array of real numbers, finite if `finite`; raises ValueError for other values."""
    # NumPy raises an error if nested lists have different lengths.
    with contextlib.suppress(ValueError, TypeError):
        array = to_numpy(value)
        if array.dtype.kind in "biufV" and (not finite or np.isfinite(array).all()):
            return array
    raise arguments.invalid(name, f"an array of real numbers{', all finite' if finite else ''}", value)


def is_arrays(data, counts=(2,), or_lists=False):
    """Returns True for a tuple or list of `counts` arrays. With `or_lists`, a list of scalars counts as an array."""

    def fits(part):
        return hasattr(part, "shape") or (or_lists and isinstance(part, list) and part and np.isscalar(part[0]))

    return isinstance(data, (tuple, list)) and len(data) in counts and all(map(fits, data))


def sliced(parts, batch_size):
    """Splits arrays of equal length into batches; yields each batch as a tuple of arrays."""
    for i in range(0, len(parts[0]), batch_size):
        yield tuple(part[i : i + batch_size] for part in parts)


def num_batches(data):
    """Returns the number of batches of a dataset or other iterable; infinity if endless, None if unknown."""
    if isinstance(data, keras.utils.PyDataset):
        return np.inf if data.num_batches is None else data.num_batches
    if hasattr(data, "cardinality"):
        # tf.data returns -1 for infinite and -2 for unknown.
        count = int(data.cardinality())
        return {-1: np.inf, -2: None}.get(count, count)
    try:
        return len(data)
    except TypeError:
        return None


def functional_graph(model):
    """Returns the functional model: `model`, or the only model inside a wrapper such as `SAM`; else None."""
    while not is_graph(model):
        models = [layer for layer in arguments.model(model).layers if isinstance(layer, keras.Model)]
        if len(models) != 1:
            return None
        (model,) = models
    return model


def check_no_files(images, name):
    """Raises ValueError if the images are file names instead of arrays."""
    if files := [part for part in keras.tree.flatten(images) if isinstance(part, (str, os.PathLike))]:
        expected = "arrays of images, as keras_vit.read_image(path, model) reads from a file"
        raise arguments.invalid(name, expected, files[0])


def check_images(model, images, name="images"):
    """Raises ValueError if a batch has a size or values that a model cannot take; warns of unusual values."""
    if hasattr(images, "shape"):
        check_size(model, images, name)
        if strange := check_values(model, to_numpy(images)):
            logger.warning("%s", strange)


def input_range(model):
    """Returns a model's (lowest, highest) input value, or None if layers before `normalization` may rescale images."""
    layer, graph = find_normalization(model), functional_graph(model)
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
    """Returns True if images look scaled to 0..1: they have fractions, and their mean is above `DARK`."""
    images = np.asarray(images)
    if not images.size or images.dtype.kind in "biu" or not (images.min() >= 0 and images.max() <= 1):
        return False
    return bool((images % 1 != 0).any()) and float(images.mean()) > DARK


def check_values(model, images):
    """Raises ValueError for images outside the model's value range; returns a warning for unusual values, else None."""
    images = np.asarray(images)
    images = images if images.dtype.kind in "biu" else images.astype("float32")
    if not images.size:
        return None
    low, high = float(images.min()), float(images.max())
    received = f"Received: values from {low:g} to {high:g}"
    if not np.isfinite([low, high]).all():
        raise ValueError(f"Expected images of finite numbers. {received}")
    taken = input_range(model)
    if taken is None:
        return None
    lowest, highest = taken
    expected = f"Expected images of {lowest:g} to {highest:g}, as the model takes them. {received}"
    if find_normalization(model).apply:
        if in_unit_range(images) or (low < 0 and high <= 10):
            raise ValueError(f"{expected}. The model has include_preprocessing=True and scales images itself.")
        return expected if low < -OVERSHOOT or high > 255 + OVERSHOOT else None
    width = highest - lowest
    if low >= 0 and 2 * width + highest < high <= 255 + OVERSHOOT:
        advice = "Scale them by keras_vit.preprocess_input(images, model), or build the model with"
        raise ValueError(f"{expected}. {advice} include_preprocessing=True.")
    # Augmented images may exceed the range by a quarter of its width. Images with values further outside were probably
    # scaled with other constants.
    if low < lowest - width / 4 or high > highest + width / 4:
        return expected
    if lowest < -0.1 and in_unit_range(images):
        return f"{expected}, which look like images scaled to 0..1"
    return None
