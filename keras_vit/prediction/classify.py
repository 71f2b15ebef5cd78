"""Classifies image files."""

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.console import Progress, printable
from keras_vit.images.evaluation_transform import EvaluationTransform
from keras_vit.images.files import read_pixels
from keras_vit.prediction.classes import (
    checked_top,
    ids_and_names,
    mean_probabilities,
    most_probable,
    prediction_activation,
)
from keras_vit.prediction.outputs import TTA, padded_output, tta_views
from keras_vit.prediction.preprocessing import require_normalization, scaled

logger = logging.getLogger("keras_vit")


def read_image(path: str | os.PathLike, model: keras.Model) -> np.ndarray:
    """Reads an image, float32 (height, width, channels) in 0..255, resized and cropped as in the model's evaluation.

    Args:
        path: Path of a file in any format that Pillow reads.
        model: A model of this package. If the model takes any image size, the image is not resized.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is not an image, or the model does not take 1, 3 or 4 channels.
        ImportError: If Pillow is not installed.

    Example:

    >>> image = keras_vit.read_image("cat.jpg", keras_vit.ViTB16())  # doctest: +SKIP
    """
    return _read_for(path, model, None)


def _read_for(path, model, tta):
    """Reads an image like `read_image`. If `tta` crops images, the height and width are 8/7 of the model's size."""
    # A model that is neither functional nor built has no `inputs`.
    shapes = [tuple(x.shape) for x in getattr(arguments.model(model), "inputs", None) or ()]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise ValueError(f"Expected a model of images, (batch, height, width, channels). Received: inputs {shapes}")
    _, height, width, channels = shapes[0]
    image = read_pixels(arguments.path("path", path), channels)
    if height is None or width is None:
        return image.astype("float32")
    size = (height * 8 // 7, width * 8 // 7) if tta in ("five_crop", "ten_crop") else (height, width)
    return EvaluationTransform(size, require_normalization(model).preprocessing).in_numpy(image)


def read_images(paths, model):
    """Reads image files with `read_image` into one array, (batch, height, width, channels)."""
    images = [read_image(path, model) for path in paths]
    if len({image.shape for image in images}) != 1:
        sizes = [f"{os.fspath(path)} of {image.shape[:2]}" for path, image in zip(paths, images, strict=True)]
        raise ValueError(f"Expected images of equal size, to form an array. Received: {', '.join(sizes) or 'none'}")
    return np.stack(images)


def classify(
    model: keras.Model,
    paths: Sequence[str | os.PathLike],
    top: int | None = None,
    *,
    broken: str = "raise",
    batch_size: int = 32,
    verbose: int = 1,
) -> list[list[tuple[str, str, float]]]:
    """Returns the `top` classes of each image file; with broken="skip", unreadable files get [] and a warning."""
    classes = ids_and_names(model)
    top = checked_top(top, classes)
    probabilities = predict_paths(model, paths, broken=broken, batch_size=batch_size, verbose=verbose)
    best = most_probable(probabilities, classes, top)
    return [[] if np.isnan(row).any() else named for row, named in zip(probabilities, best, strict=True)]


def predict_paths(model, paths, *, tta=None, broken="raise", batch_size=32, verbose=0):
    """Returns a model's predictions for image files, float32. With broken="skip", unreadable files get NaN."""
    arguments.choice("broken", broken, ("raise", "skip"))
    arguments.positive_int("batch_size", batch_size)
    arguments.choice("tta", tta, TTA)
    activation = prediction_activation(model)
    if missing := [os.fspath(path) for path in paths if not os.path.isfile(path)]:
        received = f"{len(missing)} paths without a file, the first {', '.join(missing[:10])}"
        raise FileNotFoundError(f"Expected image files. Received: {received}")
    predictions = np.full((len(paths), model.outputs[0].shape[1]), np.nan, "float32")
    errors, full = [], {}
    progress = Progress(len(paths), "image", "images", verbose=verbose)
    batches = _batches(model, paths, tta, batch_size, broken, errors)
    for places, images in progress.over(batches, lambda batch: len(batch[0])):
        # Pad all batches of the same image size to one batch size, so that the model is compiled once per image size.
        most = full[images.shape[1:]] = max(full.get(images.shape[1:], 0), len(images))
        where = f"an image of the batch that starts with {os.fspath(paths[places[0]])}"
        views = tta_views(model, scaled(images, model), tta)
        outputs = [padded_output(model, view, most, where) for view in views]
        predictions[list(places)] = mean_probabilities(outputs, activation)
    if errors:
        if len(errors) == len(paths):
            raise errors[0]
        count = f"{len(errors)} of {len(paths)} images could not be read, and have no predictions. The first of them:"
        logger.warning("%s", "\n  ".join([count, *map(str, errors[:20])]))
    return predictions


def _batches(model, paths, tta, batch_size, broken, errors):
    """Yields (indices in `paths`, images of one shape); appends the errors of unreadable files to `errors`."""

    def read(path):
        try:
            return _read_for(path, model, tta)
        except ValueError as error:
            return error

    with ThreadPoolExecutor() as pool:
        for start in range(0, len(paths), batch_size):
            by_shape = {}
            for place, image in enumerate(pool.map(read, paths[start : start + batch_size]), start):
                if isinstance(image, ValueError):
                    if broken == "raise":
                        raise image
                    errors.append(image)
                else:
                    # If the model takes any image size, the images may have different shapes.
                    by_shape.setdefault(image.shape, []).append((place, image))
            for pairs in by_shape.values():
                places, images = zip(*pairs, strict=True)
                yield places, np.stack(images)


def table(paths, predictions):
    """Formats the predictions of `classify` as text, one class per line."""
    paths = [printable(os.fspath(path), lines=False) for path in paths]
    width = max(map(len, paths), default=0)
    lines = []
    for path, classes in zip(paths, predictions, strict=True):
        if not classes:
            lines.append(f"{path:{width}}  could not be read")
        for i, (_, name, probability) in enumerate(classes):
            lines.append(f"{'' if i else path:{width}}  {probability:6.1%}  {printable(name, lines=False)}")
    return "\n".join(lines)
