"""What a model's outputs mean: the activation that makes probabilities of them, and the names of the classes."""

import os
from pathlib import Path

import keras
import numpy as np

from keras_vit.models.predictions import imagenet_classes


def activation_of(model, postprocess):
    """The activation that makes probabilities of a model's output.

    Args:
        model: A `keras.Model` with one output, (batch, classes).
        postprocess: "classify" or "multi_label".

    Returns:
        "softmax" or "sigmoid"; None where the model's last layer is one of them already.

    Raises:
        ValueError: If the model has another output.
    """
    shapes = [tuple(output.shape) for output in model.outputs]
    if len(shapes) != 1 or len(shapes[0]) != 2 or not shapes[0][1]:
        raise ValueError(
            f"Expected a model with one output of shape (batch, classes) with postprocess={postprocess!r}. "
            f"Received: outputs of shapes {shapes}"
        )
    layer = model
    while isinstance(layer, keras.Model):
        layer = layer.layers[-1]
    own = getattr(layer, "activation", None)
    if isinstance(layer, keras.layers.Softmax) or own in (keras.activations.softmax, keras.activations.sigmoid):
        return None
    # The softmax of one number is always 1.
    return "sigmoid" if postprocess == "multi_label" or shapes[0][1] == 1 else "softmax"


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
    if bad := [name for name in names if not name or len(name.splitlines()) != 1]:
        raise ValueError(f"Expected `labels` of one line each. Received: {bad[0]!r}")
    return names
