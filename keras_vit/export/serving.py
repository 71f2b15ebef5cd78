"""SavedModels for TensorFlow Serving."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.export import parity
from keras_vit.export.checked import refuse_existing
from keras_vit.export.child import custom_objects, run_in_child
from keras_vit.export.parity import ExportReport
from keras_vit.export.saved_files import write_saved_model
from keras_vit.files import draft_folder, put_folder
from keras_vit.layers import ImageNormalization
from keras_vit.models.graph import operations_before
from keras_vit.models.inputs import KEEP_SCALE, range_of
from keras_vit.models.predictions import activation_of, imagenet_classes, names_of
from keras_vit.models.preprocessing import normalization_of

# The size that serving_bytes resizes to in a model of any size.
DEFAULT_SIZE = 224


def saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    postprocess: str | None = None,
    labels: Sequence[str] | str | os.PathLike | None = None,
    top: int = 5,
    overwrite: bool = False,
    warm_up: Sequence[int] = (1,),
    image_size: int | tuple[int, int] | None = None,
    normalization: ImageNormalization | None = None,
    images: np.ndarray | None = None,
    custom_module: str | os.PathLike | None = None,
    max_batch_size: int = 128,
    max_pixels: int = 25_000_000,
    max_input_pixels: int = 1024 * 1024,
) -> ExportReport:
    """Writes a model as a SavedModel for TensorFlow Serving.

    It has three signatures, the same from every backend, in which only the batch size (and in a model of any size the
    images' size) is free:

    - `serving_default`: `images`, float32 (batch, height, width, channels), exactly as the model takes them;
    - `serving_uint8`: `images`, uint8 of that shape, raw pixels of 0..255, scaled by the model's `normalization` layer;
    - `serving_bytes`: `image_bytes`, strings (batch,), the contents of JPEG or PNG files, which are decoded, resized,
      cropped and scaled as that layer says. Only models of 1 or 3 channels have this signature.

    All return `outputs`, the model's output as float32, or several by the names of a dict or of the layers they come
    from. `serving_bytes` adds `status`, a string for each row: "ok", "unknown_format" (neither JPEG nor PNG),
    "too_large" (above `max_pixels`, or a side above 16,384) or "damaged". A row that is not "ok" has zeros for numbers,
    "" for labels and -1 for classes, and does not change the other rows.

    With `postprocess` they add `probabilities`, (batch, classes), and, most probable first, `classes` (int32),
    `scores` and `labels`, each (batch, top). The labels are a text file in the SavedModel's `assets`.

    A request gets an error if its rank, shape or type is wrong, if it has no or too many images, or if its numbers are
    NaN, infinite or overflow in the model. Loading the SavedModel needs neither Keras nor this package.

    The SavedModel is loaded and compared with the model before the folder appears, as a whole.

    Args:
        model: A model with one input of images, (batch, height, width, channels). On JAX and PyTorch it is saved to a
            temporary file and exported in a new process on TensorFlow.
        path: The folder to write, whose last part is the version, a number: "models/vit/1". A server takes no others.
        postprocess: None, "classify" (softmax) or "multi_label" (sigmoid: any number of classes an image). A model that
            ends with a softmax or sigmoid keeps its own.
        labels: Names of the classes in order, or the path of a text file with one per line. None takes those in the
            model (`class_names`), else ImageNet's for 1000 classes, and numbers otherwise.
        top: Number of classes to name; all, if there are fewer.
        overwrite: Bool, whether to replace an existing folder.
        warm_up: Batch sizes of the requests that the server sends itself when it loads the model, one per signature;
            none above `max_batch_size`; () for none.
        image_size: Int or (height, width) that `serving_bytes` resizes images to, in a model of any size; 224 x 224 by
            default. At most `max_input_pixels` in all.
        normalization: Constants to scale images with, if the model has no `normalization` layer, or other layers change
            the images before it.
        images: Images as the model takes them, to compare the outputs on besides random ones; None for none.
        custom_module: As in `export.onnx`.
        max_batch_size: The most images in a request.
        max_pixels: The largest height x width in `serving_bytes`, read from the file's header before it is decoded.
        max_input_pixels: The largest height x width in the other signatures, in a model of any size.

    Returns:
        An `ExportReport`, which prints the size and the difference.

    Raises:
        FileExistsError: If `path` exists and `overwrite` is False.
        ValueError: If `path` does not end in a number, an argument is out of range, the model has other inputs or, with
            `postprocess`, other outputs, or a new process cannot import its layers.
        ParityError: If the SavedModel gives different outputs from the model.
        RuntimeError: If the process that exports it fails.

    Example:

    >>> print(keras_vit.export.saved_model(model, "models/vit/1", postprocess="classify"))  # doctest: +SKIP
    Wrote models/vit/1 (float32, 347.8 MB): at most 5.7e-06 from the model on 2 images.

    Reference: [TensorFlow Serving](https://www.tensorflow.org/tfx/guide/serving).
    """
    path = Path(path)
    if not (path.name.isascii() and path.name.isdigit()):
        raise ValueError(
            "Invalid value received for argument `path`. Expected a folder named by a number, the version, as "
            f"{str(path.parent / '1')!r}. Received: {str(path)!r}"
        )
    height, width, channels = _input_of(model)
    arguments.one_of("postprocess", postprocess, (None, "classify", "multi_label"))
    limits = {"max_batch_size": max_batch_size, "max_pixels": max_pixels, "max_input_pixels": max_input_pixels}
    for name, value in (("top", top), *limits.items(), *(("warm_up", size) for size in warm_up)):
        arguments.positive_int(name, value)
    if max(warm_up, default=0) > max_batch_size:
        raise ValueError(
            f"Expected `warm_up` of at most max_batch_size={max_batch_size} images. Received: {tuple(warm_up)}"
        )
    size = (height or DEFAULT_SIZE, width or DEFAULT_SIZE)
    if image_size is not None:
        if None not in (height, width):
            raise ValueError(f"Expected image_size=None with a model for {size} pixels. Received: {image_size}")
        size = arguments.pair("image_size", image_size)
    if None in (height, width) and size[0] * size[1] > max_input_pixels:
        raise ValueError(
            f"Expected `image_size` of at most max_input_pixels={max_input_pixels} in all. Received: "
            f"{size[0]} x {size[1]} = {size[0] * size[1]} pixels"
        )
    settings = {"limits": limits, "image_size": size, "warm_up": list(warm_up), "postprocess": None}
    settings["normalization"] = _constants_of(model, normalization)
    if postprocess is not None:
        activation, classes = activation_of(model, postprocess), model.outputs[0].shape[-1]
        names = read_labels(names_of(model) if labels is None else labels, classes)
        settings["postprocess"] = {"activation": activation, "labels": names, "top": min(top, classes)}
    elif labels is not None:
        raise ValueError('Expected postprocess="classify" or "multi_label" with `labels`. Received: postprocess=None')
    refuse_existing(path, overwrite)
    here = keras.backend.backend() == "tensorflow"
    if not here:
        custom_objects(model, custom_module)

    low, high = (0, 255) if settings["normalization"]["apply"] else (range_of(model) or (-1, 1))
    sample = np.random.default_rng(0).uniform(low, high, (2, *size, channels)).astype("float32")
    if images is not None:
        images = np.asarray(images, "float32")
        if images.shape[1:] != sample.shape[1:]:
            expected = ", ".join(map(str, sample.shape[1:]))
            raise ValueError(f"Expected `images` of shape (batch, {expected}). Received: {images.shape}")
        sample = np.concatenate([sample, images])
    outputs = parity.outputs_of(model, sample)
    if not all(np.isfinite(output).all() for output in outputs):
        raise ValueError(f"Expected a model with finite outputs. Received: model {model.name!r}, which gives NaN.")
    settings["names"] = _names_of_outputs(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The server takes only numbers for versions, so it does not see the draft.
    with draft_folder(path) as folder:
        draft, file = folder / path.name, folder / f"{path.name}.sample.npz"
        np.savez(file, sample, *outputs)
        task = {"folder": str(draft), "settings": settings, "sample": str(file)}
        if here:
            difference = write_saved_model(model, **task)
        else:
            task |= {"backend": "tensorflow", "custom_module": custom_module}
            difference = run_in_child(write_saved_model, model, **task)
        parity.check(difference, model, outputs, None, "the SavedModel")
        stored = sum(file.stat().st_size for file in draft.rglob("*") if file.is_file())
        put_folder(draft, path)
    return ExportReport(path, "float32", stored, difference, len(sample), None)


def read_labels(labels, num_classes):
    """Returns the names of the classes from a list, a text file, or None: ImageNet's for 1000 classes, or numbers."""
    if labels is None:
        imagenet = imagenet_classes()
        if num_classes == len(imagenet):
            return [name for _, name in imagenet]
        return [str(i) for i in range(num_classes)]
    if isinstance(labels, (str, os.PathLike)):
        labels = Path(labels).read_text(encoding="utf-8").splitlines()
    names = [str(name) for name in labels]
    if len(names) != num_classes:
        raise ValueError(f"Expected `labels` to name {num_classes} classes. Received: {len(names)} names")
    if bad := [name for name in names if name.splitlines() != [name]]:
        raise ValueError(f"Expected `labels` of one line each. Received: {bad[0]!r}")
    return names


def _input_of(model):
    """Returns the (height, width, channels) of the images that a model takes."""
    inputs = getattr(model, "inputs", None)
    shapes = [tuple(tensor.shape) for tensor in inputs] if inputs else "no model, or one that was never called"
    if not inputs or len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][0] is not None or shapes[0][-1] is None:
        raise ValueError(
            "Expected a model with one input of shape (None, height, width, channels), built or called once. "
            f"Received: {shapes}"
        )
    return shapes[0][1:]


def _names_of_outputs(model):
    """Returns the keys of a dict of outputs, in the order of `flatten`, or the names that the model has for them."""
    outputs = model.output if len(model.outputs) > 1 else None
    names = parity.output_names(model)
    if isinstance(outputs, dict):
        names = [key.replace("/", "_") for key in sorted(outputs)]
    if "status" in names:
        raise ValueError(f'Expected outputs of other names than "status". Received: {names}')
    return names


def _constants_of(model, normalization):
    """Returns the constants to scale images with."""
    if normalization is None:
        advice = "Say how images are scaled: normalization=keras_vit.layers.ImageNormalization(mean, std)"
        try:
            normalization = normalization_of(model)
        except ValueError as error:
            raise ValueError(f"{error} {advice}.") from error
        expected = "Expected a model whose images go straight to its `normalization` layer. Received: model"
        before = operations_before(model, normalization)
        if before is None:
            raise ValueError(f"{expected} {model.name!r}, which has it in a model with a custom class. {advice}.")
        if changing := [operation.name for operation in before if not isinstance(operation, KEEP_SCALE)]:
            raise ValueError(
                f"{expected} {model.name!r} with {', '.join(reversed(changing))} before it. {advice}, with apply=True "
                "if the model takes raw images."
            )
    return {"apply": normalization.apply, **dataclasses.asdict(normalization.preprocessing)}
