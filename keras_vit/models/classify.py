"""From image files to named classes, with all that the model itself says about its images."""

import logging
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.evaluation_transform import EvaluationTransform
from keras_vit.models.predictions import activation_of, checked_top, classes_of, most_probable
from keras_vit.models.preprocessing import normalization_of, scaled

logger = logging.getLogger("keras_vit")


def read_image(path: str | os.PathLike, model: keras.Model) -> np.ndarray:
    """Reads an image file as the model's evaluation would: resized and cut out as its `normalization` layer says.

    Args:
        path: Path of a file of any format that Pillow reads.
        model: A model of this package.

    Returns:
        The image, (height, width, channels), float32 of 0..255, transformed as `keras_vit.Preprocessing` describes. A
        model of any size gets the image as it is.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no image, or the model takes neither grey nor colour images.

    Example:

    >>> image = read_image("cat.jpg", keras_vit.ViTB16())  # doctest: +SKIP
    """
    path = os.fspath(path)
    _, height, width, channels = model.input_shape
    if channels not in (1, 3):
        raise ValueError(f"Expected a model for images of 1 or 3 channels. Received: {channels} channels")
    if not os.path.isfile(path):
        raise FileNotFoundError(f"Expected an image file. Received: {path!r}, where there is no file.")
    try:
        image = keras.utils.load_img(path, color_mode="grayscale" if channels == 1 else "rgb")
    except ImportError as error:
        raise ImportError('Reading images needs Pillow: pip install "keras-vit[inspect]"') from error
    except (MemoryError, PermissionError):
        raise
    # What Pillow raises differs by format and by what is wrong.
    except Exception as error:
        # Of the buffer that Keras hands over it only says where it lies in memory.
        reason = re.sub(r" <_io.*?>", "", str(error))
        raise ValueError(f"Cannot read {path!r}: it is no image that Pillow knows, or damaged ({reason}).") from error
    if height is None or width is None:
        return _to_array(image)
    transform = EvaluationTransform((height, width), normalization_of(model).preprocessing)
    return transform.in_numpy(_to_array(image, "uint8"))


def read_images(paths: Sequence[str | os.PathLike], model: keras.Model) -> np.ndarray:
    """Reads image files as `read_image` does, into one array.

    Args:
        paths: Paths of the files, at least one.
        model: As in `read_image`.

    Returns:
        (batch, height, width, channels), float32 of 0..255.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a file is no image, or, with a model of any size, the images differ in theirs.

    Example:

    >>> images = read_images(["cat.jpg", "dog.jpg"], keras_vit.ViTB16())  # doctest: +SKIP
    """
    images = [read_image(path, model) for path in paths]
    if len({image.shape for image in images}) != 1:
        raise ValueError(
            "Expected images of one size for a model of any size. Received: "
            f"{', '.join(f'{os.fspath(p)} of {i.shape[:2]}' for p, i in zip(paths, images, strict=True)) or 'none'}"
        )
    return np.stack(images)


def _to_array(image, dtype="float32"):
    return keras.utils.img_to_array(image, data_format="channels_last", dtype=dtype)


def classify(
    model: keras.Model,
    paths: Sequence[str | os.PathLike],
    top: int | None = None,
    *,
    broken: str = "raise",
    batch_size: int = 32,
    verbose: int = 0,
) -> list[list[tuple[str, str, float]]]:
    """Names the most probable classes of image files.

    Args:
        model: A classifier with a `normalization` layer of this package, whose output is logits or, where it ends with
            a softmax or sigmoid, probabilities.
        paths: Paths of image files.
        top: Int, how many classes to return for each image; None takes 5, or as many as there are.
        broken: "raise" ends with an error where a file is no image; "skip" gives it an empty list, and a warning of the
            logger "keras_vit" names such files in the end.
        batch_size: Int, how many images the model gets at a time.
        verbose: 0 or 1; 1 shows a progress bar.

    Returns:
        For each image a list of (id, name, probability), most probable first, named as in `decode_predictions`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a file is no image, or with "skip" none of them is; if the model has no head or two outputs, or
            `top` is out of range.

    Example:

    >>> classify(keras_vit.ViTB16(weights="ViT-B_16.npz"), ["cat.jpg"])  # doctest: +SKIP
    """
    arguments.one_of("broken", broken, ("raise", "skip"))
    arguments.positive_int("batch_size", batch_size)
    activation, classes = activation_of(model), classes_of(model)
    top = checked_top(top, classes)
    if missing := [os.fspath(path) for path in paths if not os.path.isfile(path)]:
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        raise FileNotFoundError(f"Expected image files. Received: {', '.join(missing[:10])}{more}, which are no files.")
    named, reasons, full = [[] for _ in paths], {}, {}
    progress = keras.utils.Progbar(len(paths), unit_name="image", verbose=arguments.one_of("verbose", verbose, (0, 1)))
    for places, images in _batches(model, paths, batch_size, broken, reasons):
        # One size of batch is one compilation for images of one size.
        most = full[images.shape[1:]] = max(full.get(images.shape[1:], 0), len(images))
        padded = np.concatenate([images, np.repeat(images[:1], most - len(images), axis=0)])
        outputs = model.predict_on_batch(scaled(padded, model))[: len(images)]
        if activation is not None:
            outputs = getattr(ops, activation)(ops.cast(outputs, "float32"))
        probabilities = ops.convert_to_numpy(outputs).astype("float32")
        if not np.isfinite(probabilities).all():
            raise ValueError(f"Expected a model that gives numbers. Received: model {model.name!r}, which gives NaN.")
        for place, best in zip(places, most_probable(probabilities, classes, top), strict=True):
            named[place] = best
        progress.add(len(places))
    if reasons:
        progress.update(len(paths), finalize=True)
        if len(reasons) == len(paths):
            raise ValueError(f"Expected images. Received: {len(paths)} that are none. {next(iter(reasons.values()))}")
        lines = [f"  {reason}" for reason in reasons.values()]
        lines[20:] = [f"  ... and {len(lines) - 20} more"] if len(lines) > 20 else []
        count = f"{len(reasons)} of {len(paths)} images could not be read, and have no classes:"
        logger.warning("%s", "\n".join([count, *lines]))
    return named


def _batches(model, paths, batch_size, broken, reasons):
    """Yields (places in `paths`, images of one shape); `reasons` gets a place's message where there is no image."""

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
                    reasons[place] = str(image)
                else:
                    # Images of a model of any size differ in theirs.
                    by_shape.setdefault(image.shape, []).append((place, image))
            for pairs in by_shape.values():
                places, images = zip(*pairs, strict=True)
                yield places, np.stack(images)


def table(paths, predictions):
    """Sets the predictions of image files out as text, one class a line.

    Args:
        paths: Paths of the images.
        predictions: What `classify` returned for them.

    Returns:
        A string of aligned columns: the image's path beside its first class, the probability in percent, the name.

    Example:

    >>> print(table(["cat.jpg"], [[("n02124075", "Egyptian_cat", 0.93), ("n02123045", "tabby", 0.05)]]))
    cat.jpg   93.0%  Egyptian_cat
               5.0%  tabby
    """
    width = max((len(os.fspath(path)) for path in paths), default=0)
    lines = []
    for path, classes in zip(paths, predictions, strict=True):
        if not classes:
            lines.append(f"{os.fspath(path):{width}}  could not be read")
        for i, (_, name, probability) in enumerate(classes):
            lines.append(f"{'' if i else os.fspath(path):{width}}  {probability:6.1%}  {name}")
    return "\n".join(lines)
