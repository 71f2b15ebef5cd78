"""Top-k accuracy, and accuracy on ImageNet's reassessed labels ("ReaL")."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vit import arguments
from keras_vit.evaluation.features import (
    checked_features,
    integer_labels,
    invalid,
    one_or_more,
    outputs_and_classes,
    outputs_and_labels,
)
from keras_vit.files import regular_file
from keras_vit.models.graph import is_graph

# Matches the number of an image, counted from 1, in a file name such as ILSVRC2012_val_00000001.JPEG.
NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")


def accuracy(
    model: keras.Model, data: Any, *, k: int | Sequence[int] | None = None, batch_size: int = 32, verbose: int = 1
) -> dict[str, float]:
    """Measures the top-k accuracy of a classifier; returns for example {"top_1": 0.81, "top_5": 0.96}.

    The data's classes are matched with the model's classes by name if both have `class_names`, else by position. If
    two classes have equal outputs, the class with the lower index is ranked first. Invalid arguments and data raise the
    errors of `top_k_accuracy` and `extract_features`.

    Args:
        model: A `keras.Model` that returns one tensor of logits or probabilities, (batch, num_classes).
        data: Labeled test images. `data`, `batch_size` and `verbose` are as in `extract_features`.
        k: Int, or several ints to measure several accuracies. None means 1, and also 5 if there are at least 5 classes.

    Example:
    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=10)
    >>> accuracy(model, (np.zeros((4, 32, 32, 3)), np.array([0, 1, 4, 9])), verbose=0)
    {'top_1': 0.25, 'top_5': 0.75}
    """
    counts = None if k is None else one_or_more("k", k, arguments.positive_int)
    if is_graph(model) and len(model.outputs) == 1 and len(model.outputs[0].shape) == 2:
        # Check the classes first, so that an error is raised before the model runs on all images.
        _check_classes("model", model.outputs[0].shape[1], max(counts or [1]))
    outputs, labels = outputs_and_classes(model, data, batch_size, verbose)
    counts = counts or [count for count in (1, 5) if count <= outputs.shape[-1]]
    return {f"top_{count}": top_k_accuracy(outputs, labels, k=count) for count in counts}


def top_k_accuracy(predictions: ArrayLike, labels: ArrayLike, *, k: int = 1) -> float:
    """Returns the share (0 to 1) of the images whose true class is among the k classes with the highest outputs.

    If two classes have equal outputs, the class with the lower index is ranked first.

    Args:
        predictions: (num_images, num_classes), logits or probabilities. Values that are not finite raise a ValueError.
        labels: Integer classes counted from 0, (num_images,), or one-hot labels, (num_images, num_classes).
        k: Int, at most the number of classes.

    Example:
    >>> top_k_accuracy([[0.1, 0.7, 0.2], [0.5, 0.1, 0.4]], [1, 2], k=2)
    1.0
    """
    predictions, labels = checked_features("predictions", predictions), integer_labels(labels)
    if len(predictions) != len(labels):
        raise invalid("labels", f"{len(predictions)} labels, one per prediction", len(labels))
    num_classes = predictions.shape[1]
    _check_classes("predictions", num_classes, arguments.positive_int("k", k), labels.max())
    own = np.take_along_axis(predictions, labels[:, None], axis=1)
    before = (predictions > own) | ((predictions == own) & (np.arange(num_classes) < labels[:, None]))
    return float(np.mean(before.sum(axis=1) < k))


def _check_classes(name, num_classes, k=1, highest=0):
    """Raises ValueError if `num_classes` is 1, is less than `k`, or is at most `highest`, the largest label."""
    if num_classes == 1:
        received = "one output. To measure its accuracy, compare the results of `predict` with a threshold."
        raise invalid(name, "two or more outputs, one for each class", received)
    if k > num_classes:
        raise invalid("k", f"at most {num_classes}, the number of classes", k)
    if highest >= num_classes:
        raise invalid("labels", f"classes below {num_classes}, the number of outputs", highest)


def imagenet_real_accuracy(
    model: keras.Model | None,
    data: Any,
    labels: str | os.PathLike | Sequence[Sequence[int]],
    *,
    file_names: Sequence[str | os.PathLike] | None = None,
    batch_size: int = 32,
    verbose: int = 1,
) -> float:
    """Measures a classifier's accuracy, in [0, 1], on the reassessed labels ("ReaL") of ImageNet's validation images.

    Each image has a list of correct classes. A prediction is correct if it is in this list. Images with an empty list
    are not counted.

    Args:
        model: A `keras.Model` with one output for each of the 1,000 classes, or None if `data` is predictions.
        data: Validation images, as in `extract_features`. The labels in `data` are ignored. If `model` is None, pass an
            array of logits or probabilities, (num_images, num_classes).
        labels: Path of `real.json`, the file that the authors of ReaL publish; or, for each image, a list of classes
            counted from 0.
        file_names: The file name or path of each image in `data`, such as "ILSVRC2012_val_00000001.JPEG", or the
            `file_paths` of a dataset from `keras_vit.data.from_directory`. None means that `data` contains all images
            in the order of the numbers in their names.

    Raises:
        FileNotFoundError: If there is no file at `labels`.
        ValueError: If the labels or file names do not fit the images.

    Example:
    >>> imagenet_real_accuracy(None, [[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]], [[1], [0, 1], []])
    1.0

    Reference: [arXiv 2006.07159](https://arxiv.org/abs/2006.07159).
    """
    labels = _real_labels(labels)
    if file_names is not None:
        file_names = [arguments.path("file_names", name) for name in arguments.several("file_names", file_names)]
        matches = [NUMBER.search(os.fspath(name)) for name in file_names]
        for name, match in zip(file_names, matches, strict=True):
            if match is None or not 1 <= int(match[1]) <= len(labels):
                expected = f"names like ILSVRC2012_val_00000001.JPEG, with numbers up to {len(labels)}"
                raise invalid("file_names", expected, repr(name))
        labels = [labels[int(match[1]) - 1] for match in matches]
    highest = max((label for classes in labels for label in classes), default=None)
    if highest is None:
        raise invalid("labels", "at least one image with a class", "none")
    if model is None:
        predictions = checked_features("data", data)
    else:
        # Ignore the labels in `data`, because they may have any value, such as -1 for an unknown class.
        predictions, _ = outputs_and_labels(model, data, batch_size, verbose, lambda own: np.zeros(len(own)))
    if len(predictions) != len(labels):
        received = f"{len(labels)}. For a subset or another order, pass `file_names`."
        raise invalid("labels", f"{len(predictions)} lists, one per prediction", received)
    _check_classes("data", predictions.shape[1], highest=highest)
    chosen = predictions.argmax(axis=1).tolist()
    return float(np.mean([c in classes for c, classes in zip(chosen, labels, strict=True) if classes]))


def _real_labels(labels):
    """Returns a list of classes for each image, read from a JSON file if `labels` is a path."""
    name = "labels"
    if isinstance(labels, (str, os.PathLike)):
        name = os.fspath(labels)
        try:
            labels = json.loads(Path(regular_file(name, "a JSON file of labels")).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"Expected JSON in {name!r}. Received: {error}") from error
    for i, classes in enumerate(labels if isinstance(labels, (list, tuple)) else [labels]):
        if not isinstance(classes, (list, tuple)) or not all(type(c) is int and c >= 0 for c in classes):
            expected = f"`{name}` to hold a list of classes, counted from 0, for each image"
            raise ValueError(f"Expected {expected}. Received: {classes!r} for image {i}")
    return labels


def vtab_mean(accuracies: Mapping[str, float], tasks: Mapping[str, Any]) -> dict[str, float]:
    """Averages accuracies on the tasks of the Visual Task Adaptation Benchmark (VTAB).

    Returns a dict from the name of each group to the mean accuracy of the tasks in this group. The dict also contains
    "mean", the mean accuracy of all tasks.

    Args:
        accuracies: Mapping from the name of each task to the accuracy in [0, 1].
        tasks: Mapping from the name of each task to the name of its group, or `keras_vit.data.VTAB`.

    Raises:
        ValueError: If an accuracy is missing, is not a number in [0, 1], or belongs to a task that is not in `tasks`.

    Example:
    >>> vtab_mean({"dtd": 0.5, "svhn": 0.7, "dmlab": 0.3}, {"dtd": "natural", "svhn": "natural", "dmlab": "structured"})
    {'natural': 0.6, 'structured': 0.3, 'mean': 0.5}

    Reference: [arXiv 1910.04867](https://arxiv.org/abs/1910.04867).
    """
    arguments.instance("accuracies", accuracies, Mapping)
    arguments.instance("tasks", tasks, Mapping)
    groups = {name: task if isinstance(task, str) else task.group for name, task in tasks.items()}
    missing, unknown = sorted(set(groups) - set(accuracies)), sorted(set(accuracies) - set(groups))
    if missing or unknown:
        received = f"missing: {', '.join(missing) or 'none'}; not in `tasks`: {', '.join(unknown) or 'none'}"
        raise invalid("accuracies", f"one for each of {len(groups)} tasks", received)
    for name, value in accuracies.items():
        if not arguments.is_number(value) or not 0 <= value <= 1:
            raise invalid("accuracies", "numbers in [0, 1]", f"{value!r} for {name!r}")
    means = {group: fmean([accuracies[n] for n in groups if groups[n] == group]) for group in groups.values()}
    return {**means, "mean": fmean(accuracies.values())}
