"""Exports SavedModels for TensorFlow Serving."""

import dataclasses
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.export import parity
from keras_vit.export.formats import FORMATS, refuse_existing, write_checked
from keras_vit.files import regular_file
from keras_vit.layers import ImageNormalization
from keras_vit.models.graph import operations_before
from keras_vit.prediction.classes import ids_and_names, output_activation
from keras_vit.prediction.inputs import KEEP_SCALE, input_range, real_array
from keras_vit.prediction.preprocessing import require_normalization
from keras_vit.prediction.taps import AttentionTaps

# The image size of the signature `serving_bytes` if the model takes any size.
DEFAULT_SIZE = 224


def saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    postprocess: str | None = None,
    labels: Sequence[str] | str | os.PathLike | None = None,
    top: int = 5,
    overwrite: bool = False,
    warm_up: Sequence[int] = (),
    image_size: int | tuple[int, int] | None = None,
    normalization: ImageNormalization | None = None,
    images: np.ndarray | None = None,
    custom_module: str | os.PathLike | None = None,
    max_batch_size: int = 128,
    max_pixels: int = 25_000_000,
    max_input_pixels: int = 1024 * 1024,
    attention: bool = False,
) -> dict:
    """Exports a model to a SavedModel for TensorFlow Serving, checks the outputs, and returns a report.

    The SavedModel has three signatures, which are the same for every backend. They take any batch size, and any image
    size if the model allows it. `serving_default` takes `images`, float32 (batch, height, width, channels), scaled as
    the model takes them. `serving_uint8` takes `images` of the same shape, uint8 in [0, 255], and scales them by the
    model's `normalization` layer. `serving_bytes` takes `image_bytes`, strings (batch,), each the bytes of a JPEG or
    PNG file. It decodes the files, and resizes, crops and scales the images by the settings of that layer. If the model
    does not have 1 or 3 channels, this signature is left out.

    All signatures return `outputs` in float32. If the model has several outputs, they are named by the keys of its
    output dict or by their layers. `serving_bytes` adds `status`, strings (batch,): "ok", "unknown_format" (neither
    JPEG nor PNG), "damaged" or "too_large". An image is too large if it has more than `max_pixels` pixels or a side
    above 16,384. A JPEG of more than `16 * max_pixels / (height * width)` scans and a PNG of more than 8 compressed
    texts are also "too_large". If the status of a row is not "ok", its labels are "", its classes are -1, and its other
    outputs are 0.

    A request fails if its shape or type is wrong, if the batch is empty or too large, or if a value is not finite or
    overflows in the model. Loading the SavedModel needs neither Keras nor this package.

    Args:
        model: A model with one input, (batch, height, width, channels). On JAX and PyTorch the export runs in a new
            TensorFlow process.
        path: The folder to write. The folder's name must be a version number, as in "models/vit/1".
        postprocess: None, "classify" (softmax) or "multi_label" (sigmoid). If it is not None, all signatures also
            return the `probabilities` of all classes, (batch, num_classes). They also return the indices `classes`
            (int32), the probabilities `scores` and the names `labels` of the most probable classes, each (batch, top).
            If the model ends in a softmax or sigmoid, no activation is added.
        labels: Class names in order, or the path of a text file with one name per line. The names are stored in the
            folder `assets`. None selects the model's `class_names`. If the model has no class names, None selects
            ImageNet's class names for a model with 1000 outputs, and numbers for all other models.
        top: Int, the number of most probable classes to return. If the model has fewer classes, all are returned.
        overwrite: Bool, whether to replace an existing folder.
        warm_up: Batch sizes of warm-up requests; () means none. TensorFlow Serving runs these requests for each
            signature while it loads the model, so that the first client does not wait. Writing the requests needs
            `pip install tensorflow-serving-api`.
        image_size: Int or (height, width) in pixels, the size to which `serving_bytes` resizes images if the model
            takes any size; default 224 x 224.
        normalization: The layer that scales images. Pass it if the model has no `normalization` layer, or if layers
            before this layer change the images.
        images, custom_module: As in `export.onnx`.
        max_batch_size: Int, the largest number of images per request.
        max_pixels: Int, the largest height x width of an image in `serving_bytes`.
        max_input_pixels: Int, the largest height x width of the `images` in a request and of `image_size`. This limit
            only applies if the model takes any image size.
        attention: Bool, whether to add the signature `serving_attention`. It returns the outputs of `serving_bytes` and
            two other outputs. `attention`, float32 (batch, rows, columns), is the result of
            `inspection.attention_rollout`. `attention_corners`, float32 (batch, 2, 2), shows which part of the original
            image the map covers. It contains the positions (y, x) of the map's upper left and lower right corner, as
            fractions of the image's height and width. The model must contain one ViT of this package, without token
            merging.

    The report and the errors are as in `export.onnx`. A ValueError is also raised if the model's input is not
    supported, or if `postprocess` does not support the model's output.

    Example:
    >>> keras_vit.export.saved_model(model, "models/vit/1", postprocess="classify")["difference"]  # doctest: +SKIP
    5.7e-06

    Reference: [TensorFlow Serving](https://www.tensorflow.org/tfx/guide/serving).
    """
    path = Path(arguments.path("path", path))
    arguments.each(arguments.boolean, overwrite=overwrite, attention=attention)
    warm_up = arguments.several("warm_up", warm_up)
    if not (path.name.isascii() and path.name.isdigit()):
        raise arguments.invalid("path", f"a folder named by a number (the version), as {str(path / '1')!r}", str(path))
    height, width, channels = _input_size(model)
    arguments.choice("postprocess", postprocess, (None, "classify", "multi_label"))
    limits = {"max_batch_size": max_batch_size, "max_pixels": max_pixels, "max_input_pixels": max_input_pixels}
    for name, value in (("top", top), *limits.items(), *(("warm_up", size) for size in warm_up)):
        arguments.positive_int(name, value)
    if max(warm_up, default=0) > max_batch_size:
        raise arguments.invalid("warm_up", f"at most max_batch_size={max_batch_size} images", warm_up)
    size = (height or DEFAULT_SIZE, width or DEFAULT_SIZE)
    if image_size is not None:
        if None not in (height, width):
            raise ValueError(f"Expected image_size=None with a model for {size} pixels. Received: {image_size}")
        size = arguments.pair("image_size", image_size)
    if None in (height, width) and size[0] * size[1] > max_input_pixels:
        received = f"{size[0]} x {size[1]} = {size[0] * size[1]} pixels"
        raise ValueError(f"Expected `image_size` with at most {max_input_pixels=} pixels. Received: {received}")
    server = {**limits, "image_size": size, "normalization": _scaling_constants(model, normalization)}
    server["postprocess"] = None
    if postprocess is not None:
        activation, classes = output_activation(model, postprocess), model.outputs[0].shape[-1]
        names = read_labels([name for _, name in ids_and_names(model)] if labels is None else labels, classes)
        server["postprocess"] = {"activation": activation, "labels": names, "top": min(top, classes)}
    elif labels is not None:
        raise ValueError('Expected postprocess="classify" or "multi_label" with `labels`. Received: postprocess=None')
    if warm_up and importlib.util.find_spec("tensorflow_serving") is None:
        raise ImportError("`warm_up` needs a package that is not installed: pip install tensorflow-serving-api")
    refuse_existing(path, overwrite)
    low, high = (0, 255) if server["normalization"]["apply"] else (input_range(model) or (-1, 1))
    sample = np.random.default_rng(0).uniform(low, high, (2, *size, channels)).astype("float32")
    given = real_array("images", [] if images is None else images).astype("float32")
    if images is not None and given.shape[1:] != sample.shape[1:]:
        expected = ", ".join(map(str, sample.shape[1:]))
        raise ValueError(f"Expected `images` of shape (batch, {expected}). Received: {given.shape}")
    if attention:
        if channels not in (1, 3):
            raise ValueError(f"Expected a model of 1 or 3 channels with attention=True. Received: {channels} channels")
        try:
            AttentionTaps(model).rollout(sample[:1])
        except ValueError as error:
            raise ValueError(f"Expected a model that supports attention rollout for attention=True. {error}") from error
    settings = {"precision": "float32", "server": server, "attention": attention, "warm_up": list(warm_up)}
    settings["names"] = _names_of_outputs(model, attention)
    batches = [sample], parity.split_batches(given)
    options = {"overwrite": overwrite, "custom_module": custom_module}
    return write_checked(FORMATS["saved_model"], model, path, settings, *batches, **options)


def read_labels(labels, num_classes):
    """Returns class names from a list or a text file."""
    if isinstance(labels, (str, os.PathLike)):
        path = regular_file(labels, "`labels` as a text file, a class per line")
        labels = Path(path).read_text(encoding="utf-8-sig").splitlines()
    names = [str(name) for name in arguments.several("labels", labels)]
    if len(names) != num_classes:
        raise ValueError(f"Expected `labels` to name {num_classes} classes. Received: {len(names)} names")
    if bad := [name for name in names if name.splitlines() != [name]]:
        raise ValueError(f"Expected `labels` of one line each. Received: {bad[0]!r}")
    return names


def _input_size(model):
    """Returns the (height, width, channels) of the model's input."""
    shapes = [tuple(x.shape) for x in getattr(model, "inputs", None) or []]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][0] is not None or shapes[0][-1] is None:
        expected = "one input of shape (None, height, width, channels), built or called once"
        raise ValueError(f"Expected a model with {expected}. Received: inputs of shapes {shapes}")
    return shapes[0][1:]


def _names_of_outputs(model, attention):
    """Returns the names of the outputs: the sorted keys if the model returns a dict, else `parity.output_names`."""
    outputs = model.output if len(model.outputs) > 1 else None
    names = parity.output_names(model)
    if isinstance(outputs, dict):
        names = [key.replace("/", "_") for key in sorted(outputs)]
    reserved = ["status", *(["attention", "attention_corners"] if attention else [])]
    if not set(names).isdisjoint(reserved):
        raise ValueError(f"Expected no output named {' or '.join(map(repr, reserved))}. Received: {names}")
    return names


def _scaling_constants(model, normalization):
    """Returns the settings of the layer that scales images: `normalization`, or else the model's own layer."""
    if normalization is None:
        layer = "keras_vit.layers.ImageNormalization(keras_vit.Preprocessing(...))"
        advice = f"Pass the layer that scales images: normalization={layer}"
        try:
            normalization = require_normalization(model)
        except ValueError as error:
            raise ValueError(f"{error} {advice}.") from error
        expected = "Expected a model whose images go straight to its `normalization` layer. Received: model"
        before = operations_before(model, normalization)
        if before is None:
            raise ValueError(
                f"{expected} {model.name!r}, in which this layer is inside a model of a custom class. {advice}."
            )
        if changing := [operation.name for operation in before if not isinstance(operation, KEEP_SCALE)]:
            received = f"{model.name!r} with {', '.join(reversed(changing))} before this layer"
            raise ValueError(f"{expected} {received}. {advice}, with apply=True if the model takes raw images.")
    arguments.instance("normalization", normalization, ImageNormalization)
    return {"apply": normalization.apply, "preprocessing": dataclasses.asdict(normalization.preprocessing)}
