"""Prepares images, batches, block indices and classes for inspection."""

import numbers

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.prediction.inputs import check_images, check_no_files, real_array
from keras_vit.prediction.taps import AttentionTaps, PatchLayout, to_numpy


def patch_layout(model: keras.Model, images) -> PatchLayout:
    """Returns the `PatchLayout` of a model for images; arguments and errors as in `attention_maps`.

    Example:
    >>> layout = patch_layout(keras_vit.ViTTi16(image_size=(48, 32), num_registers=4), np.zeros((1, 48, 32, 3)))
    >>> layout.grid_size, layout.patch_size, layout.num_prefix_tokens
    ((3, 2), (16.0, 16.0), 5)
    """
    taps = AttentionTaps(model)
    taps.run(batches(model, images, 1)[0])
    return taps.layout


def raw_pictures(model, images):
    """Undoes a model's preprocessing; returns images in [0, 255], (batch, height, width, channels), float32."""
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
    """Joins the arrays of `compute(part, indices)` over parts; returns one if the argument is an int, else a list.

    The argument `name` has the `value`: an int below `depth`, a list of ints, or None for all.
    """
    chosen = range(depth) if value is None else list(value) if np.iterable(value) else [value]
    if not all(isinstance(i, numbers.Integral) and type(i) is not bool and -depth <= i < depth for i in chosen):
        raise arguments.invalid(name, f"None, or integers below {depth}, the model's depth", value)
    found = zip(*(compute(part, [i % depth for i in chosen]) for part in parts), strict=True)
    joined = [np.concatenate(arrays) for arrays in found]
    return joined[0] if isinstance(value, numbers.Integral) else joined


def shaped(name, value, axes):
    """Returns a float32 array; raises if it is empty or does not have the axes, of which equal names are as long."""
    array, names, sides = real_array(name, value).astype("float32"), axes.split(", "), {}
    same = all(sides.setdefault(axis, side) == side for axis, side in zip(names, array.shape, strict=False))
    if array.ndim != len(names) or not array.size or not same:
        raise ValueError(f"Expected `{name}` of shape ({axes}). Received: shape {array.shape}")
    return array


def class_indices(name, classes, names):
    """Converts an array of class names to their positions in `names`; integers stay unchanged."""
    classes = np.asarray(ops.convert_to_numpy(classes) if ops.is_tensor(classes) else classes)
    if classes.dtype.kind not in "UO":
        return classes
    names = list(names or ())
    if unknown := [value for value in classes.ravel().tolist() if names.count(value) != 1]:
        expected = "names that the model has once" if names else "integers, as the model has no class names"
        raise arguments.invalid(name, expected, unknown[0], names)
    return np.reshape([names.index(value) for value in classes.ravel().tolist()], classes.shape)
