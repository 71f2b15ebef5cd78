"""From image files to named classes, with all that the model itself says about its images."""

import os
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.models.predictions import activation_of, imagenet_classes
from keras_vit.models.preprocessing import normalization_of, preprocess_input

# Pillow's numbers of its filters.
_PILLOW = {"nearest": 0, "lanczos3": 1, "lanczos5": 1, "bicubic": 3, "area": 4}


def read_image(path: str | os.PathLike, model: keras.Model) -> np.ndarray:
    """Reads an image file as the model's evaluation would: resized and cut out as its `normalization` layer says.

    Args:
        path: Path of a file of any format that Pillow reads.
        model: A model of this package.

    Returns:
        The image, (height, width, channels), float32 of 0..255. With a crop fraction of 1 the whole image is resized to
        the model's size, whatever its shape; else its shorter side is, and the centre cut out. A model of any size gets
        the image as it is.

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
    except (OSError, SyntaxError) as error:
        raise ValueError(f"Cannot read {path!r}: it is no image that Pillow knows, or damaged ({error}).") from error
    if height is None or width is None:
        return _to_array(image)
    layer = normalization_of(model)
    if layer.crop_fraction == 1:
        return _resize(image, height, width, layer.interpolation)
    scale = max(height / layer.crop_fraction / image.height, width / layer.crop_fraction / image.width)
    rows, columns = max(round(image.height * scale), height), max(round(image.width * scale), width)
    image = _resize(image, rows, columns, layer.interpolation)
    top, left = (rows - height) // 2, (columns - width) // 2
    return image[top : top + height, left : left + width]


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


def _resize(image, height, width, interpolation):
    """Bilinear without antialiasing, as the official code; any other way by Pillow, as the code that uses it does."""
    if interpolation == "bilinear":
        image = ops.image.resize(_to_array(image), (height, width), interpolation, data_format="channels_last")
        return ops.convert_to_numpy(image)
    return _to_array(image.resize((width, height), _PILLOW[interpolation]))


def _to_array(image):
    return keras.utils.img_to_array(image, data_format="channels_last", dtype="float32")


def classify(
    model: keras.Model, paths: Sequence[str | os.PathLike], top: int = 5
) -> list[list[tuple[str, str, float]]]:
    """Names the most probable classes of image files.

    Args:
        model: A classifier of this package, whose output is logits or, where it ends with a softmax or sigmoid,
            probabilities.
        paths: Paths of image files.
        top: Int, how many classes to return for each image.

    Returns:
        For each image a list of (class id, name, probability), most probable first. Of 1000 classes the ids and names
        are ImageNet's; of any other number both are the class' index.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a file is no image, the model has no head or two outputs, or `top` is out of range.

    Example:

    >>> classify(keras_vit.ViTB16(weights="ViT-B_16.npz"), ["cat.jpg"])  # doctest: +SKIP
    """
    if "head" not in {layer.name for layer in model.layers}:
        raise ValueError(f"Expected a model with a head. Received: model {model.name!r}, which gives features.")
    activation = activation_of(model)
    num_classes = model.output_shape[-1]
    if not 1 <= top <= num_classes:
        raise ValueError(f"Expected `top` between 1 and {num_classes}. Received: top={top}")
    imagenet = num_classes == len(imagenet_classes())
    classes = imagenet_classes() if imagenet else [(str(i), str(i)) for i in range(num_classes)]
    named = []
    for path in paths:
        # One by one: images of a model of any size differ in theirs.
        image = preprocess_input(read_image(path, model)[None], model)
        outputs = model(image, training=False)
        if activation is not None:
            outputs = getattr(ops, activation)(outputs)
        probabilities = ops.convert_to_numpy(outputs)[0]
        best = np.argsort(-probabilities)[:top]
        named.append([(*classes[i], float(probabilities[i])) for i in best])
    return named


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
        for i, (_, name, probability) in enumerate(classes):
            lines.append(f"{'' if i else os.fspath(path):{width}}  {probability:6.1%}  {name}")
    return "\n".join(lines)
