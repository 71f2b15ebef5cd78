"""The names of a model's classes."""

import os
from pathlib import Path

import numpy as np

from keras_vit.models.predictions import imagenet_classes


def read_labels(labels, num_classes):
    """The names of a model's classes.

    Args:
        labels: Names in the order of the classes, or the path of a text file of one a line. None takes ImageNet's for
            1000 classes, and numbers for any other number.
        num_classes: Integer.

    Returns:
        List of strings.

    Raises:
        ValueError: If there are not as many as classes, or one is not a line of text.

    Example:

    >>> from keras_vit.export.labels import read_labels
    >>> read_labels(["cat", "dog"], 2)
    ['cat', 'dog']
    """
    if labels is None:
        imagenet = imagenet_classes()
        if num_classes == len(imagenet):
            return [name for _, name in imagenet]
        return [str(i) for i in range(num_classes)]
    if isinstance(labels, (str, os.PathLike)):
        labels = Path(labels).read_text(encoding="utf-8").splitlines()
    names = [str(name) for name in np.asarray(labels, object).ravel()]
    if len(names) != num_classes:
        raise ValueError(f"Expected `labels` to name {num_classes} classes. Received: {len(names)} names")
    if bad := [name for name in names if name.splitlines() != [name]]:
        raise ValueError(f"Expected `labels` of one line each. Received: {bad[0]!r}")
    return names
