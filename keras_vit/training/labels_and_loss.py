"""Checks that the labels, outputs and loss of a classifier fit each other."""

from typing import NamedTuple

import keras
import numpy as np

from keras_vit.prediction.classes import output_activation

# The labels that classification losses take, by lower-case class name.
KINDS = {
    "sparsecategoricalcrossentropy": "sparse",
    "categoricalcrossentropy": "one_hot",
    "categoricalfocalcrossentropy": "one_hot",
    "binarycrossentropy": "multi_hot",
    "binaryfocalcrossentropy": "multi_hot",
}


class Loss(NamedTuple):
    """A compiled loss and the labels it expects."""

    name: str  # name of the class or function
    kind: str  # "sparse": integers, "one_hot": a distribution over the classes, "multi_hot": 0 to 1 for each class
    from_logits: bool  # False if the loss expects probabilities
    ignored: int | None = None  # the label to ignore


# Metrics that may expect probabilities: {class: (argument, function that is True if its value means probabilities)}.
_OF_PROBABILITIES = {
    "BinaryAccuracy": ("threshold", lambda value: 0 < value < 1),
    "AUC": ("from_logits", lambda value: not value),
    **{
        name: ("thresholds", lambda value: value is None or all(0 < x < 1 for x in np.ravel(value)))
        for name in ("Precision", "Recall", "TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives")
    },
}


class Head(NamedTuple):
    """An output of a model with its labels and loss."""

    name: str  # empty if the model has only one output
    labels: np.ndarray | None
    all_labels: np.ndarray | None
    num_classes: int | None
    loss: Loss | None


def classification_heads(model, graph, labels, all_labels, compiled):
    """Returns the `Head` of each output whose labels are known."""
    outputs = [] if graph is None else graph.outputs
    sizes = [output.shape[-1] if len(output.shape) == 2 else None for output in outputs]
    if len(outputs) == 1 or not isinstance(labels, (dict, list, tuple)):
        size = sizes[0] if len(sizes) == 1 else None
        known = compiled or not isinstance(labels, np.ndarray)
        return [Head("", labels, all_labels, size, recognised_loss(model) if known else likely_loss(labels))]
    pairs = labels.items() if isinstance(labels, dict) else zip(graph.output_names, labels, strict=False)
    losses, heads = getattr(model, "loss", None), []
    for number, (name, part) in enumerate(pairs):
        size = dict(zip(graph.output_names, sizes, strict=True)).get(name)
        loss = losses
        if isinstance(losses, dict):
            loss = losses.get(name)
        elif isinstance(losses, (list, tuple)):
            loss = losses[number] if number < len(losses) else None
        all_part = all_labels[name] if isinstance(all_labels, dict) else None
        heads.append(Head(name, part, all_part, size, recognised_loss(model, loss)))
    return heads


def metric_problems(model, loss, num_classes):
    """Yields a message for each metric that expects probabilities if the model returns logits."""
    try:
        compiled = model.get_compile_config() or {}
    # A user's own metric may have no config.
    except Exception:
        return
    if loss is None or not loss.from_logits:
        return
    given = [compiled.get("metrics"), compiled.get("weighted_metrics")]
    for metric in [metric for metrics in given if isinstance(metrics, (list, tuple)) for metric in metrics]:
        if isinstance(metric, dict):
            name, config = metric.get("class_name"), metric.get("config") or {}
            key, wrong = _OF_PROBABILITIES.get(name, ("", lambda value: False))
            wrong = wrong(config.get(key))
        else:
            name, key, wrong = metric, "threshold", loss.kind == "multi_hot" and metric == "binary_accuracy"
            wrong = wrong or (num_classes == 1 and metric in ("accuracy", "acc"))
        if wrong:
            remedy = "from_logits=True" if key == "from_logits" else f"{key}=0.0"
            better = name if name in _OF_PROBABILITIES else "BinaryAccuracy"
            yield (
                f"Expected metrics for logits, as the model and {loss.name} have them. Received: {name}, which takes "
                f"probabilities. keras.metrics.{better}({remedy}) takes logits."
            )


def task_problems(graph, loss, num_classes):
    """Yields a message if the loss does not fit the model's task."""
    softmax = loss is not None and loss.kind != "multi_hot"
    task = getattr(getattr(graph, "config", None), "task", None)
    if softmax and num_classes == 1:
        yield (
            f"Expected a loss for one output, such as BinaryCrossentropy. Received: {loss.name}, a softmax, which is 1 "
            "for one output. For two classes build the model with num_classes=2."
        )
    elif softmax and task in ("multi_label", "regression"):
        wanted = "BinaryCrossentropy(from_logits=True)" if task == "multi_label" else '"mse"'
        yield f"Expected a loss for task={task!r}, such as {wanted}. Received: {loss.name}"
    elif loss is not None and task == "regression":
        yield f"Expected a loss for task='regression', such as \"mse\". Received: {loss.name}"


def recognised_loss(model, loss=None):
    """Returns the `Loss` of a model; None if it is not compiled, or has no classification loss of Keras."""
    loss = getattr(model, "loss", None) if loss is None else loss
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    # Subclasses of Keras' losses expect the same labels.
    names = [loss.__name__] if hasattr(loss, "__name__") else [owner.__name__ for owner in type(loss).__mro__]
    for name in names:
        if kind := KINDS.get(name.lower().replace("_", "")):
            ignored = getattr(loss, "ignore_class", None)
            return Loss(names[0].lstrip("_"), kind, bool(getattr(loss, "from_logits", False)), ignored)
    return None


def likely_loss(labels):
    """Guesses the loss of a model that is not compiled from its labels; None if it remains unknown."""
    if labels.ndim == 2 and labels.shape[1] > 1:
        return Loss("a classifier", "multi_hot", True)
    return Loss("a classifier", "sparse", True) if labels.dtype.kind in "biu" else None


def loss_problems(loss, graph, outputs):
    """Yields a message if the loss expects logits and gets probabilities, or the reverse."""
    try:
        probable = graph is not None and output_activation(graph) is None
    except ValueError:
        return
    if graph is None or probable != loss.from_logits:
        return
    # The model may end in a custom activation, so the values are checked as well.
    values = outputs()
    in_range = bool((values >= 0).all() and (values <= 1).all() and (values > 0).any())
    if loss.kind != "multi_hot":
        in_range = in_range and bool(np.allclose(values.sum(axis=-1), 1, atol=1e-2))
    if in_range != loss.from_logits:
        return
    got, wanted = ("probabilities", "False") if probable else ("logits", "True")
    yield (
        f"Expected a loss with from_logits={wanted}, since the model gives {got}. Received: {loss.name} with "
        f"from_logits={loss.from_logits}"
    )


def label_problems(labels, num_classes, loss):
    """Yields a message for each mistake in the labels of a classifier; `loss` is a `Loss` or None."""
    if labels.dtype.kind in "OSU":
        example = np.ravel(labels)[0]
        example = example.decode(errors="replace") if isinstance(example, bytes) else str(example)
        yield (
            f"Expected labels as integers from 0 to {num_classes - 1}, or one-hot. Received: strings, as {example!r}. "
            "Use the index of each in the sorted list of all names."
        )
        return
    # A custom loss may take any labels, such as NaN.
    if loss is None:
        return
    if not np.isfinite(labels.astype("float64")).all():
        yield "Expected finite labels. Received: NaN or infinity"
        return
    integers, wanted = labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1), loss.kind
    # Binary labels may come as a column or as a vector.
    if wanted == "multi_hot" and num_classes == 1 and integers:
        labels, integers = labels.reshape(-1, 1), False
    if wanted == "sparse" and not integers:
        yield _not_integers(labels, num_classes, loss)
    elif wanted == "sparse":
        yield from _not_classes(labels[labels != loss.ignored], num_classes)
    elif integers:
        yield (
            f"Expected labels of shape (batch, {num_classes}) for {loss.name}. Received: shape {_shape(labels)}. "
            "SparseCategoricalCrossentropy takes integers."
        )
    elif labels.ndim != 2 or labels.shape[1] != num_classes:
        yield (
            f"Expected labels of shape (batch, {num_classes}), one number for each output of the model. "
            f"Received: shape {_shape(labels)}"
        )
    elif wanted == "one_hot" and np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) > 1).any():
        yield (
            f"Expected one class an image for {loss.name}. Received: up to {labels.sum(axis=1).max():g} classes an "
            "image. BinaryCrossentropy is the loss for several labels an image."
        )
    elif labels.min() < 0 or labels.max() > 1:
        yield f"Expected labels of 0 to 1 for {loss.name}. Received: {labels.min():g} to {labels.max():g}"


def label_doubts(labels, all_labels, num_classes, loss):
    """Yields a message for each unusual fact about valid labels; `all_labels` are the labels of all images, or None."""
    if loss and loss.kind == "one_hot" and not np.allclose(labels.sum(axis=1), 1, atol=1e-2):
        yield (
            f"Expected labels that sum to 1 an image for {loss.name}. Received: sums from {labels.sum(axis=1).min():g} "
            f"to {labels.sum(axis=1).max():g}. BinaryCrossentropy is the loss for several labels an image."
        )
    counts = count_classes(all_labels, num_classes, loss)
    absent = [] if counts is None else [i for i, count in enumerate(counts) if not count]
    if absent:
        yield (
            f"Expected images of each of the model's {num_classes} classes. Received: none of {len(absent)} classes: "
            f"{', '.join(map(str, absent[:10]))}{' ...' if len(absent) > 10 else ''}"
        )


def count_classes(labels, num_classes, loss):
    """Returns the number of images per class as a tuple; None if unknown, or if the labels are not classes."""
    if labels is None or not loss or not num_classes or num_classes < 2:
        return None
    if labels.dtype.kind not in "biuf" or labels.ndim > 2:
        return None
    if labels.ndim == 2 and labels.shape[1] == num_classes:
        return tuple((labels > 0).sum(axis=0).tolist())
    if labels.size != len(labels):
        return None
    flat = labels[labels != loss.ignored]
    if not flat.size or (flat % 1 != 0).any() or flat.min() < 0 or flat.max() >= num_classes:
        return None
    return tuple(np.bincount(flat.astype("int64"), minlength=num_classes).tolist())


def _not_integers(labels, num_classes, loss):
    shape = f"shape {_shape(labels)}"
    if labels.ndim == 2 and (labels % 1 != 0).any():
        shape = f"mixed or smoothed labels of {shape}, as MixUp and CutMix make them"
    elif labels.ndim == 2 and labels.shape[1] == num_classes:
        shape = f"one-hot labels of {shape}"
    return f"Expected integers as labels for {loss.name}. Received: {shape}. CategoricalCrossentropy takes them."


def _not_classes(labels, num_classes):
    if not labels.size:
        return
    low, high = labels.min(), labels.max()
    if (labels % 1 != 0).any():
        yield f"Expected integers as labels. Received: numbers as {labels[labels % 1 != 0].flat[0]:g}"
    elif num_classes > 1 and (low < 0 or high >= num_classes):
        counted = " They look as if counted from 1: subtract 1." if low >= 1 and high == num_classes else ""
        yield (
            f"Expected labels from 0 to {num_classes - 1}, as the model has {num_classes} outputs. Received: labels "
            f"from {low:g} to {high:g}.{counted}"
        )


def _shape(labels):
    return f"(batch{''.join(f', {size}' for size in labels.shape[1:])}{'' if labels.ndim > 1 else ','})"
