"""Classifies image files."""

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
from keras import ops

from keras_vit import arguments, image_files
from keras_vit.evaluation_transform import EvaluationTransform
from keras_vit.models.predictions import activation_of, checked_top, classes_of, most_probable
from keras_vit.models.preprocessing import normalization_of, scaled

logger = logging.getLogger("keras_vit")


def read_image(path: str | os.PathLike, model: keras.Model) -> np.ndarray:
    """Reads an image as float32 (height, width, channels) in 0..255, resized and cropped as in the model's evaluation.

    Args:
        path: Path of a file in any format that Pillow reads.
        model: A model of this package. For a model of any size, the image keeps its size.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not an image, or the model takes neither 1 nor 3 channels.

    Example:

    >>> image = keras_vit.read_image("cat.jpg", keras_vit.ViTB16())  # doctest: +SKIP
    """
    _, height, width, channels = model.input_shape
    image = image_files.read_image(path, channels)
    if height is None or width is None:
        return image.astype("float32")
    return EvaluationTransform((height, width), normalization_of(model).preprocessing).in_numpy(image)


def read_images(paths, model):
    """Reads image files of one size as `read_image` does, into one array, (batch, height, width, channels)."""
    images = [read_image(path, model) for path in paths]
    if len({image.shape for image in images}) != 1:
        sizes = [f"{os.fspath(path)} of {image.shape[:2]}" for path, image in zip(paths, images, strict=True)]
        raise ValueError(f"Expected images of one size for a model of any size. Received: {', '.join(sizes) or 'none'}")
    return np.stack(images)


def classify(
    model: keras.Model,
    paths: Sequence[str | os.PathLike],
    top: int | None = None,
    *,
    broken: str = "raise",
    batch_size: int = 32,
    verbose: int = 0,
) -> list[list[tuple[str, str, float]]]:
    """Returns the `top` classes of each image file; with broken="skip", unreadable files get [] and a warning."""
    arguments.one_of("broken", broken, ("raise", "skip"))
    arguments.positive_int("batch_size", batch_size)
    activation, classes = activation_of(model), classes_of(model)
    top = checked_top(top, classes)
    if missing := [os.fspath(path) for path in paths if not os.path.isfile(path)]:
        received = f"{len(missing)} paths without a file, the first {', '.join(missing[:10])}"
        raise FileNotFoundError(f"Expected image files. Received: {received}")
    named, errors, full = [[] for _ in paths], [], {}
    progress = keras.utils.Progbar(len(paths), unit_name="image", verbose=arguments.one_of("verbose", verbose, (0, 1)))
    for places, images in _batches(model, paths, batch_size, broken, errors):
        # Padded, so that each image size is compiled for one batch size.
        most = full[images.shape[1:]] = max(full.get(images.shape[1:], 0), len(images))
        padded = np.concatenate([images, np.repeat(images[:1], most - len(images), axis=0)])
        outputs = model.predict_on_batch(scaled(padded, model))[: len(images)]
        if activation is not None:
            outputs = getattr(ops, activation)(ops.cast(outputs, "float32"))
        probabilities = ops.convert_to_numpy(outputs).astype("float32")
        if not np.isfinite(probabilities).all():
            raise ValueError(
                f"Expected a model that outputs numbers. Received: model {model.name!r}, which outputs NaN."
            )
        for place, best in zip(places, most_probable(probabilities, classes, top), strict=True):
            named[place] = best
        progress.add(len(places))
    if errors:
        progress.update(len(paths), finalize=True)
        if len(errors) == len(paths):
            raise errors[0]
        count = f"{len(errors)} of {len(paths)} images could not be read, and have no classes. The first of them:"
        logger.warning("%s", "\n  ".join([count, *map(str, errors[:20])]))
    return named


def _batches(model, paths, batch_size, broken, errors):
    """Yields (indices in `paths`, images of one shape); appends the errors of unreadable files to `errors`."""

    def read(path):
        try:
            return read_image(path, model)
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
                    # Shapes differ for a model of any size.
                    by_shape.setdefault(image.shape, []).append((place, image))
            for pairs in by_shape.values():
                places, images = zip(*pairs, strict=True)
                yield places, np.stack(images)


def table(paths, predictions):
    """Formats the predictions of `classify` as text, one class per line."""
    width = max((len(os.fspath(path)) for path in paths), default=0)
    lines = []
    for path, classes in zip(paths, predictions, strict=True):
        if not classes:
            lines.append(f"{os.fspath(path):{width}}  could not be read")
        for i, (_, name, probability) in enumerate(classes):
            lines.append(f"{'' if i else os.fspath(path):{width}}  {probability:6.1%}  {name}")
    return "\n".join(lines)
