"""Plots of training histories and predictions."""

import math
import os
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.images.figures import displayable, finish, literal, new_panels, show
from keras_vit.inspection.inputs import class_indices
from keras_vit.prediction.classes import ids_and_names
from keras_vit.prediction.inputs import real_array

_TRAIN, _VALIDATION, _WRONG = "#1f77b4", "#ff7f0e", "#d62728"


def plot_history(history, path: str | os.PathLike | None = None):
    """Plots the loss and each accuracy per epoch, for training and validation, and returns the figure.

    Args:
        history: The return value of `model.fit`, or a dict of lists with one number per epoch.
        path: As in `plot_attention_rollout`; the same errors are raised.
    """
    curves = arguments.instance("history", getattr(history, "history", history), Mapping, "a dict of lists")
    names = ["loss"] + [name for name in curves if "accuracy" in name and not name.startswith("val_")]
    if not curves.get("loss"):
        raise ValueError(f"Expected a history with at least one epoch of `loss`. Received: {list(curves)}")
    figure, panels = new_panels(len(names), len(names), (5.2 * len(names), 3.8))
    for name, axes in zip(names, panels, strict=True):
        for key, label, colour in ((name, "train", _TRAIN), (f"val_{name}", "validation", _VALIDATION)):
            if key in curves:
                epochs = range(1, len(curves[key]) + 1)
                # A line through a single point is invisible, so draw a marker.
                marker = "o" if len(epochs) == 1 else None
                axes.plot(epochs, curves[key], label=f"{label} ({curves[key][-1]:.4g})", color=colour, marker=marker)
        title = name.replace("_", " ")
        axes.set(title=title.capitalize(), xlabel="epoch", ylabel=title)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(title="last epoch", frameon=False)
    return finish(figure, path)


def plot_predictions(
    images, labels, probabilities, class_names: Sequence[str] | keras.Model, path: str | os.PathLike | None = None
):
    """Plots a grid of images with true class, predicted class and its probability, and returns the figure.

    If a prediction is wrong, the image has a red frame.

    Args:
        images: (number, height, width, channels), in [0, 255], with 1, 3 or 4 channels. The fourth is not shown.
        labels: The true classes, (number,), as ints or class names.
        probabilities: (number, classes), with rows that sum to 1. Logits raise a ValueError.
        class_names: The class names in order, or a model that contains its class names.
        path: As in `plot_attention_rollout`; the same errors are raised.

    Example:
    >>> probabilities = keras.ops.softmax(model.predict(images))  # doctest: +SKIP
    >>> keras_vit.inspection.plot_predictions(images, labels, probabilities, model)  # doctest: +SKIP
    """
    if isinstance(class_names, keras.Model):
        class_names = [name for _, name in ids_and_names(class_names)]
    class_names = arguments.class_names(arguments.several("class_names", class_names), None)
    images, probabilities = real_array("images", images), real_array("probabilities", probabilities).astype("float64")
    labels = class_indices("labels", labels, class_names)
    shapes, num_classes = (images.shape, labels.shape, probabilities.shape), len(class_names)
    number = len(images) if images.ndim else 0
    fit = shapes[1:] == ((number,), (number, num_classes))
    if not fit or not number or images.ndim != 4 or images.shape[-1] not in (1, 3, 4):
        expected = "one or more `images` of shape (number, height, width, channels) with 1, 3 or 4 channels, `labels` "
        expected += f"of shape (number,) and `probabilities` of shape (number, {num_classes})"
        raise ValueError(f"Expected {expected}. Received: shapes {', '.join(map(str, shapes))}")
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"Expected `labels` to be integers of 0..{num_classes - 1}. Received: {labels.tolist()}")
    # The tolerance allows for probabilities in half precision.
    if not (probabilities.min() >= 0 and np.abs(probabilities.sum(axis=1) - 1).max() < 0.02):
        received = f"numbers from {probabilities.min():.4g} to {probabilities.max():.4g}"
        expected = "`probabilities` of at least 0 that sum to 1"
        raise ValueError(f"Expected {expected}. Received: {received}. Apply keras.ops.softmax to logits first.")
    names = [literal(name if len(name) <= 18 else f"{name[:17]}…") for name in class_names]
    columns = math.ceil(math.sqrt(len(images) * 1.5))
    rows = math.ceil(len(images) / columns)
    figure, panels = new_panels(len(images), columns, (1.9 * columns, 2.3 * rows))
    for axes, image, label, p in zip(panels, displayable(images), labels, probabilities, strict=True):
        best = int(p.argmax())
        wrong = best != label
        show(axes, image)
        axes.spines[:].set(color=_WRONG, linewidth=3, visible=wrong)
        title = f"{names[best]} ({p[best]:.0%})\ntrue: {names[label]}"
        axes.set_title(title, color=_WRONG if wrong else "black", fontsize=9)
    return finish(figure, path)
