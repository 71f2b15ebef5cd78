"""Prepares images, batches, block indices and classes for inspection."""

import numbers

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.prediction.inputs import check_images, check_no_files, real_array
from keras_vit.prediction.taps import AttentionTaps, PatchLayout, to_numpy


def patch_layout(model: keras.Model, images) -> PatchLayout:
    """Returns the grid of patches into which a model splits images, as a `PatchLayout`.

    The arguments and the errors are as in `attention_maps`.

    Example:
    >>> layout = patch_layout(keras_vit.ViTTi16(image_size=(48, 32), num_registers=4), np.zeros((1, 48, 32, 3)))
    >>> layout.grid_size, layout.patch_size, layout.num_prefix_tokens
    ((3, 2), (16.0, 16.0), 5)
    """
    taps = AttentionTaps(model)
    taps.run(batches(model, images, 1)[0])
    return taps.layout


def raw_pictures(model, images):
    """Converts a model's input back to pixels in [0, 255], float32 (batch, height, width, channels)."""
    taps = AttentionTaps(model)
    taps.run(images)
    if taps.images is None:
        raise ValueError(f"Expected a model with a `normalization` layer of keras_vit. Received: {model.name!r}")
    return to_numpy(taps.normalization.raw_images(ops.cast(taps.images, "float32")))


def batches(model, inputs, batch_size) -> list:
    """Splits a model's input, an array or a structure of arrays, into batches, and checks the first batch."""
    arguments.positive_int("batch_size", batch_size)
    check_no_files(inputs, "images")
    number = len(keras.tree.flatten(arguments.arrays("images", inputs))[0])
    if not number:
        raise ValueError("Expected `images` to hold at least one image. Received: none")
    starts = range(0, number, batch_size)
    parts = [keras.tree.map_structure(lambda x, start=start: x[start : start + batch_size], inputs) for start in starts]
    check_images(model, parts[0])
    return parts


def collect(name, value, depth, parts, compute):
    """Calls `compute(batch, indices)` for each batch in `parts`. Concatenates the returned arrays of each index."""
    chosen = range(depth) if value is None else list(value) if np.iterable(value) else [value]
    if not all(isinstance(i, numbers.Integral) and type(i) is not bool and -depth <= i < depth for i in chosen):
        raise arguments.invalid(name, f"None, or integers below {depth}, the model's depth", value)
    found = zip(*(compute(part, [i % depth for i in chosen]) for part in parts), strict=True)
    joined = [np.concatenate(arrays) for arrays in found]
    return joined[0] if isinstance(value, numbers.Integral) else joined


def shaped(name, value, axes):
    """Returns `value` as a non-empty float32 array with these `axes`. Axes of the same name must be equally long."""
    array, names, sides = real_array(name, value).astype("float32"), axes.split(", "), {}
    same = all(sides.setdefault(axis, side) == side for axis, side in zip(names, array.shape, strict=False))
    if array.ndim != len(names) or not array.size or not same:
        raise ValueError(f"Expected `{name}` of shape ({axes}). Received: shape {array.shape}")
    return array


def class_indices(name, classes, names):
    """Converts class names to indices in `names`, the names of all classes. Integers are returned unchanged."""
    classes = np.asarray(ops.convert_to_numpy(classes) if ops.is_tensor(classes) else classes)
    if classes.dtype.kind not in "UO":
        return classes
    names = list(names or ())
    if unknown := [value for value in classes.ravel().tolist() if names.count(value) != 1]:
        expected = "a name that exactly one class has" if names else "integers, because the model has no class names"
        raise arguments.invalid(name, expected, unknown[0], names)
    return np.reshape([names.index(value) for value in classes.ravel().tolist()], classes.shape)
