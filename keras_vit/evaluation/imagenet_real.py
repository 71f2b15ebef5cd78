import json
import os
import re

import numpy as np

from keras_vit.evaluation.features import checked_features, outputs_and_labels

# As in ILSVRC2012_val_00000001.JPEG, counted from 1; the class's wnid may follow.
NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")


def imagenet_real_accuracy(model, data, labels, *, file_names=None, batch_size=32, verbose=1):
    """Measures a classifier's accuracy on the reassessed labels of ImageNet's validation images ("ReaL").

    A prediction is right if it is any of the classes that an image was found to show. Images that were found to show
    none are left out.

    Args:
        model: A `keras.Model` with one output for each of the 1,000 classes.
        data: The validation images, as in `extract_features`; their own labels are not looked at.
        labels: Path of the labels' JSON file, as in `read_real_labels`, or what that returns.
        file_names: Strings, the name or path of each image's file in the order of `data`, as "ILSVRC2012_val_00000001.
            JPEG", which tell the images' numbers; `file_paths` of a dataset of `keras_vit.data.from_directory`. None
            says that `data` has all images in the order of their numbers.
        batch_size: As in `extract_features`.
        verbose: As in `extract_features`.

    Returns:
        Float.

    Raises:
        FileNotFoundError: If there is no file at `labels`.
        ValueError: If the labels or file names do not fit the images.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> images = (np.zeros((4, 32, 32, 3)), np.zeros(4, int))
    >>> imagenet_real_accuracy(model, images, [[0], [0, 5], [7], []], verbose=0)  # the new head says class 0
    0.6666666666666666

    Reference: [arXiv 2006.07159](https://arxiv.org/abs/2006.07159).
    """
    labels = read_real_labels(labels) if isinstance(labels, (str, os.PathLike)) else _checked_labels("labels", labels)
    if file_names is not None:
        labels = [labels[i] for i in _indices(file_names, len(labels))]
    # Their own labels are of any kind, as -1 where they are not known.
    outputs, _ = outputs_and_labels(model, data, batch_size, verbose, read_labels=lambda own: np.zeros(len(own)))
    return real_accuracy(outputs, labels)


def real_accuracy(predictions, labels):
    """Measures how often the class of the highest output is one of an image's classes.

    Args:
        predictions: (num_images, num_classes), logits or probabilities.
        labels: For each image a list of classes; an image with none is left out.

    Returns:
        Float.

    Raises:
        ValueError: If there are not as many labels as predictions, a class has no output, or no image has a label.

    Example:

    >>> real_accuracy([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]], [[1], [0, 1], []])
    1.0
    """
    predictions, labels = checked_features("predictions", predictions), _checked_labels("labels", labels)
    if len(predictions) != len(labels):
        raise ValueError(
            f"Invalid value received for argument `labels`. Expected one list a prediction, {len(predictions)}. "
            f"Received: {len(labels)}. Where images are fewer, or in another order, pass `file_names`."
        )
    highest = max((max(classes) for classes in labels if classes), default=None)
    if highest is None:
        raise ValueError("Invalid value received for argument `labels`. Expected a class of any image. Received: none")
    if highest >= predictions.shape[1]:
        raise ValueError(
            f"Invalid value received for argument `labels`. Expected classes below {predictions.shape[1]}, the number "
            f"of outputs. Received: {highest}"
        )
    chosen = predictions.argmax(axis=1)
    return float(np.mean([c in classes for c, classes in zip(chosen.tolist(), labels, strict=True) if classes]))


def read_real_labels(path):
    """Reads the reassessed labels of ImageNet's validation images.

    Args:
        path: Path of a JSON file of one list of classes, counted from 0, for each image in the order of their numbers:
            `real.json` as its authors publish it.

    Returns:
        A list of lists of ints.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no JSON, or holds something else.

    Example:

    >>> labels = read_real_labels("real.json")  # doctest: +SKIP
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"Expected a JSON file of labels. There is none at {os.fspath(path)!r}")
    with open(path, encoding="utf-8") as file:
        try:
            labels = json.load(file)
        except ValueError as error:
            raise ValueError(f"Expected JSON in {os.fspath(path)!r}. Received: {error}") from error
    return _checked_labels(os.fspath(path), labels)


def _checked_labels(name, labels):
    if not isinstance(labels, (list, tuple)):
        raise ValueError(f"Expected `{name}` to hold a list of classes for each image. Received: {labels!r}")
    for i, classes in enumerate(labels):
        if not isinstance(classes, (list, tuple)) or not all(type(c) is int and c >= 0 for c in classes):
            raise ValueError(
                f"Expected `{name}` to hold a list of classes, counted from 0, for each image. Received: {classes!r} "
                f"for image {i}"
            )
    return labels


def _indices(file_names, count):
    """The places in the labels of images with these file names."""
    indices = []
    for name in file_names:
        match = NUMBER.search(os.fspath(name))
        if match is None or not 1 <= int(match[1]) <= count:
            raise ValueError(
                "Invalid value received for argument `file_names`. Expected names as ILSVRC2012_val_00000001.JPEG, "
                f"with numbers up to {count}. Received: {name!r}"
            )
        indices.append(int(match[1]) - 1)
    return indices
