"""The images, batches and blocks that inspection works on."""

import numbers
from collections.abc import Iterator

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.prediction.watch import PatchLayout, Watch, to_numpy


def patch_layout(model: keras.Model, images) -> PatchLayout:
    """Returns the `PatchLayout` of a model for images; arguments and errors as in `attention_maps`.

    Example:

    >>> layout = patch_layout(keras_vit.ViTTi16(image_size=(48, 32), num_registers=4), np.zeros((1, 48, 32, 3)))
    >>> layout.grid_size, layout.patch_size, layout.num_prefix_tokens
    ((3, 2), (16.0, 16.0), 5)
    """
    watch = Watch(model)
    watch.run(next(batches(images, 1)))
    return watch.layout


def pictures_of(model, images):
    """Undoes a model's preprocessing of its input: images in [0, 255], (batch, height, width, channels), float32."""
    watch = Watch(model)
    watch.run(images)
    if watch.images is None:
        raise ValueError(
            f"Expected a model with a `normalization` layer of this package. Received: model {model.name!r}"
        )
    layer, images = watch.images
    return to_numpy(layer.raw_images(ops.cast(images, "float32")))


def batches(inputs, batch_size) -> Iterator:
    """Splits a model's input, an array or a structure of arrays, into batches."""
    arguments.positive_int("batch_size", batch_size)
    number = len(keras.tree.flatten(inputs)[0])
    if not number:
        raise ValueError("Expected `images` to hold at least one image. Received: none")
    for start in range(0, number, batch_size):
        yield keras.tree.map_structure(lambda x, start=start: x[start : start + batch_size], inputs)


def indices(name, value, depth) -> list:
    """Returns the indices of the blocks that an argument chooses: an int, a list of them, or None for all."""
    if value is None:
        return list(range(depth))
    chosen = list(value) if np.iterable(value) else [value]
    if not all(isinstance(i, numbers.Integral) and type(i) is not bool and -depth <= i < depth for i in chosen):
        raise arguments.invalid(name, f"None, or integers below {depth}, the model's depth", value)
    return [i % depth for i in chosen]
