"""Checks that the labels, outputs, loss and metrics of a classifier fit each other."""

import itertools
from typing import NamedTuple

import numpy as np

from keras_vit.models.losses import Loss, loss_mismatch, recognised_loss
from keras_vit.prediction.classes import output_activation

_COUNTS = ("Precision", "Recall", "TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives")
# {metric: (argument, function of the argument's value)}. The function returns True if the value makes the metric expect
# probabilities.
_OF_PROBABILITIES = {
    "BinaryAccuracy": ("threshold", lambda value: 0 < value < 1),
    "AUC": ("from_logits", lambda value: not value),
    **dict.fromkeys(_COUNTS, ("thresholds", lambda value: value is None or all(0 < x < 1 for x in np.ravel(value)))),
}


class Head(NamedTuple):
    """An output of a model, together with its labels and its `Loss`. A field is None if it is unknown."""

    name: str  # empty if there is only one `Head`
    labels: np.ndarray | None
    all_labels: np.ndarray | None
    num_classes: int | None
    loss: Loss | None


def classification_heads(model, graph, seen, compiled):
    """Returns a `Head` for each output with labels, or a single `Head` if there is only one array of labels."""
    outputs, labels, all_labels = [] if graph is None else graph.outputs, seen.labels, seen.all_labels
    sizes = [output.shape[-1] if len(output.shape) == 2 else None for output in outputs]
    losses = getattr(model, "loss", None)
    if len(outputs) < 2 or not isinstance(labels, (dict, list, tuple)):
        if compiled or not isinstance(labels, np.ndarray):
            loss = recognised_loss(losses)
        else:
            several = labels.ndim == 2 and labels.shape[1] > 1
            kind = "multi_hot" if several else "sparse" if labels.dtype.kind in "biu" else None
            loss = kind and Loss("a classifier", kind, True)
        return [Head("", labels, all_labels, sizes[0] if len(sizes) == 1 else None, loss)]
    sizes, heads = dict(zip(graph.output_names, sizes, strict=True)), []
    if isinstance(losses, (list, tuple)):
        losses = dict(zip(graph.output_names, losses, strict=False))
    pairs = labels.items() if isinstance(labels, dict) else zip(graph.output_names, labels, strict=False)
    for name, part in pairs:
        loss = losses.get(name) if isinstance(losses, dict) else losses
        all_part = all_labels[name] if isinstance(all_labels, dict) else None
        heads.append(Head(name, part, all_part, sizes.get(name), recognised_loss(loss)))
    return heads


def task_problem(graph, labels, loss, num_classes):
    """Returns an error message if the loss or the number of targets does not fit the model's task, otherwise None."""
    task = getattr(getattr(graph, "config", None), "task", None)
    softmax = loss is not None and loss.kind != "multi_hot"
    if softmax and num_classes == 1:
        return (
            f"Expected a loss for one output, such as BinaryCrossentropy. Received: {loss.name}. The softmax of "
            "one output is always 1. For two classes, build the model with num_classes=2."
        )
    if (softmax and task == "multi_label") or (loss is not None and task == "regression"):
        wanted = "BinaryCrossentropy(from_logits=True)" if task == "multi_label" else '"mse"'
        return f"Expected a loss for task={task!r}, such as {wanted}. Received: {loss.name}"
    targets = 1 if labels.ndim == 1 else labels.shape[1]
    if task == "regression" and targets != num_classes:
        return f"Expected a target for each of the {num_classes} outputs. Received: {targets} per image"
    return None


def label_problem(labels, num_classes, loss):
    """Returns an error message if the labels do not fit the classifier and its loss, otherwise None."""
    if labels.dtype.kind in "OSU":
        example = np.ravel(labels)[0]
        example = example.decode(errors="replace") if isinstance(example, bytes) else str(example)
        expected = f"Expected labels as integers from 0 to {num_classes - 1}, or one-hot"
        return f"{expected}. Received: strings, such as {example!r}. Use the index of each name in the sorted names."
    # If the loss is unknown, accept labels of any kind.
    if loss is None:
        return None
    if not np.isfinite(labels.astype("float64")).all():
        return "Expected finite labels. Received: NaN or infinity"
    column = labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1)
    shape = f"shape (batch{''.join(f', {size}' for size in labels.shape[1:])}{'' if labels.ndim > 1 else ','})"
    if loss.kind == "sparse":
        if column:
            return _class_problem(labels[labels != loss.ignored], num_classes)
        if labels.ndim == 2 and (labels % 1 != 0).any():
            shape = f"mixed or smoothed labels of {shape}, as from MixUp and CutMix"
        elif labels.ndim == 2 and labels.shape[1] == num_classes:
            shape = f"one-hot labels of {shape}"
        return f"Expected integers as labels for {loss.name}. Received: {shape}. Use CategoricalCrossentropy."
    # Binary labels may have the shape (batch, 1) or (batch,).
    if loss.kind == "multi_hot" and num_classes == 1 and column:
        labels = labels.reshape(-1, 1)
    elif column:
        expected = f"Expected labels of shape (batch, {num_classes}) for {loss.name}"
        return f"{expected}. Received: {shape}. For integers, use SparseCategoricalCrossentropy."
    if labels.ndim != 2 or labels.shape[1] != num_classes:
        expected = f"Expected labels of shape (batch, {num_classes}), one number for each output of the model"
        return f"{expected}. Received: {shape}"
    if loss.kind == "one_hot" and np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) > 1).any():
        return (
            f"Expected one class per image for {loss.name}. Received: up to {labels.sum(axis=1).max():g} classes per "
            "image. For several classes per image, use BinaryCrossentropy."
        )
    if labels.min() < 0 or labels.max() > 1:
        return f"Expected labels of 0 to 1 for {loss.name}. Received: {labels.min():g} to {labels.max():g}"
    return None


def _class_problem(labels, num_classes):
    """Returns an error message if the labels are not integers from 0 to `num_classes` - 1, otherwise None."""
    if (labels % 1 != 0).any():
        return f"Expected integers as labels. Received: numbers such as {labels[labels % 1 != 0].flat[0]:g}"
    if not labels.size or num_classes == 1 or (labels.min() >= 0 and labels.max() < num_classes):
        return None
    low, high = labels.min(), labels.max()
    counted = " If labels are counted from 1, subtract 1." if low >= 1 and high == num_classes else ""
    expected = f"Expected labels from 0 to {num_classes - 1}, as the model has {num_classes} outputs"
    return f"{expected}. Received: labels from {low:g} to {high:g}.{counted}"


def label_doubts(labels, all_labels, num_classes, loss):
    """Yields a warning for each unusual property of valid labels. `all_labels` are the labels of all images or None."""
    if loss and loss.kind == "one_hot" and not np.allclose(sums := labels.sum(axis=1), 1, atol=1e-2):
        yield (
            f"Expected labels that sum to 1 for each image for {loss.name}. Received: sums from {sums.min():g} to "
            f"{sums.max():g}. For several classes per image, use BinaryCrossentropy."
        )
    counts = count_classes(all_labels, num_classes, loss)
    if absent := [str(i) for i, count in enumerate(counts or ()) if not count]:
        yield (
            f"Expected images of all {num_classes} classes of the model. Received: no images of {len(absent)} classes: "
            f"{', '.join(absent[:10])}{' ...' if len(absent) > 10 else ''}"
        )


def count_classes(labels, num_classes, loss):
    """Returns the number of images of each class as a tuple, or None if the labels are unknown or are not classes."""
    if labels is None or not loss or not num_classes or num_classes < 2:
        return None
    if labels.dtype.kind not in "biuf" or labels.ndim > 2:
        return None
    if labels.ndim == 2 and labels.shape[1] == num_classes:
        return tuple((labels > 0).sum(axis=0).tolist())
    flat = labels[labels != loss.ignored]
    if labels.size != len(labels) or not flat.size or _class_problem(flat, num_classes):
        return None
    return tuple(np.bincount(flat.astype("int64"), minlength=num_classes).tolist())


def loss_problems(model, graph, loss, images):
    """Returns [message] if the loss expects logits and the model returns probabilities, or the reverse; else []."""
    try:
        probable = graph is not None and output_activation(graph) is None
    except ValueError:
        return []
    if graph is None or probable != loss.from_logits:
        return []
    # Check the values of the outputs too, because the model may end in a custom activation.
    values = np.asarray(model.predict_on_batch(images), "float32")
    in_range = (values >= 0).all() and (values <= 1).all() and (values > 0).any()
    if loss.kind != "multi_hot":
        in_range = in_range and np.allclose(values.sum(axis=-1), 1, atol=1e-2)
    return [loss_mismatch(loss, probable)] if bool(in_range) == loss.from_logits else []


def metric_problems(model, loss, num_classes):
    """Returns a message for each metric that expects probabilities although the model returns logits."""
    try:
        compiled = model.get_compile_config() or {}
    # A custom metric may have no config.
    except Exception:
        return []
    given = [compiled.get("metrics"), compiled.get("weighted_metrics")] if loss.from_logits else []
    problems = []
    for metric in itertools.chain(*(metrics for metrics in given if isinstance(metrics, (list, tuple)))):
        if isinstance(metric, dict):
            name, config = metric.get("class_name"), metric.get("config") or {}
            key, means_probabilities = _OF_PROBABILITIES.get(name, ("", lambda value: False))
            # With `top_k`, the metric has no threshold unless one is given.
            ranked = config.get("top_k") is not None and config.get(key) is None
            wrong = not ranked and means_probabilities(config.get(key))
        else:
            name, key, wrong = metric, "threshold", loss.kind == "multi_hot" and metric == "binary_accuracy"
            wrong = wrong or (num_classes == 1 and metric in ("accuracy", "acc"))
        if wrong:
            remedy = "from_logits=True" if key == "from_logits" else f"{key}=0.0"
            better = name if name in _OF_PROBABILITIES else "BinaryAccuracy"
            problems.append(
                f"Expected metrics for logits, because the model returns logits. Received: {name}, a metric of "
                f"probabilities. Use keras.metrics.{better}({remedy})."
            )
    return problems
