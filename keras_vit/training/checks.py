"""Checks a model and its data before training, and raises an error for mistakes."""

import dataclasses
import itertools
import logging
import math
from collections.abc import Iterable
from typing import NamedTuple

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.config import find_normalization
from keras_vit.console import printable
from keras_vit.distribution.layouts import batch_parts
from keras_vit.models.finite import non_finite_weights
from keras_vit.models.losses import recognised_loss
from keras_vit.models.profile import profile
from keras_vit.prediction.classes import gives_classes
from keras_vit.prediction.inputs import check_values, functional_graph, input_range, num_batches, to_numpy
from keras_vit.prediction.taps import sublayers
from keras_vit.training.epochs import Rows, as_tuple, check_parts, is_arrays
from keras_vit.training.labels_and_loss import (
    classification_heads,
    count_classes,
    label_doubts,
    label_problem,
    loss_problems,
    metric_problems,
    task_problem,
)
from keras_vit.training.trainable import count_parameters

logger = logging.getLogger("keras_vit")

# The model predicts at most this number of images, to find out if it returns logits or probabilities.
_IMAGES = 32


@dataclasses.dataclass(frozen=True)
class Findings:
    """The findings of `preflight` about a training run; unknown fields are None. `print(findings)` shows a summary."""

    model: str  # name of the model
    num_images: int | None  # per epoch
    num_classes: int | None  # size of the model's output
    class_names: tuple  # may be empty
    images_per_class: tuple | None  # counted in all images if `counted_all`, otherwise in the batches that were read
    counted_all: bool
    batch_shape: tuple | None
    values: tuple | None  # (min, max) of the pixel values in the batches that were read
    expected_values: tuple | None  # (min, max) of the pixel values that the model takes
    labels: str | None  # dtype and shape of a batch of labels
    loss: str | None  # name of the compiled loss
    initial_loss: float | None  # loss of a batch before training
    chance_loss: float | None  # log(num_classes), the loss of equal probabilities; None if images have several classes
    trainable: int  # number of trainable parameters
    frozen: int  # number of frozen parameters
    steps: int | None  # steps of the whole training
    memory: int | None  # estimated bytes of weights, gradients, optimizer and a batch's activations
    warnings: tuple  # messages about unusual settings

    def __str__(self):
        rows = {"data": f"{self.num_images or 'an unknown number of'} images"}
        rows["data"] += "" if self.num_classes is None else f", {self.num_classes} outputs"
        if counts := self.images_per_class:
            names = dict(enumerate(self.class_names))
            shown = [f"{names.get(i, i)} {count}" for i, count in enumerate(counts[:6])] + ["..."] * (len(counts) > 6)
            rows["classes"] = f"{', '.join(shown)}{'' if self.counted_all else ', in the batches read'}"
        if self.batch_shape:
            rows["a batch"] = " x ".join(map(str, self.batch_shape)) + " of {:.4g} to {:.4g}".format(*self.values)
            if self.expected_values is not None:
                rows["a batch"] += "; the model takes {:.4g} to {:.4g}".format(*self.expected_values)
        rows |= {"labels": self.labels, "loss": self.loss or "not compiled"}
        if self.initial_loss is not None:
            rows["loss"] += f", {self.initial_loss:.4g} before training"
            rows["loss"] += f"; chance level is {self.chance_loss:.4g}" if self.chance_loss else ""
        rows["parameters"] = f"{self.trainable:,} trained, {self.frozen:,} frozen"
        rows["steps"] = self.steps and f"{self.steps:,}"
        rows["memory"] = self.memory and f"about {self.memory / 1e6:,.1f} MB, from the layer shapes"
        rows = [f"  {name:12}{text or 'not known'}" for name, text in rows.items()]
        return "\n".join(line[:160] for line in [f"{self.model} on {keras.backend.backend()}", *rows])


def preflight(model, data, *, validation_data=None, epochs=1, steps_per_epoch=None, batch_size=32, verbose=1):
    """Checks a model and its data before training, estimates the memory, and returns `Findings`.

    It reads a few batches and runs the model, but it does not change weights. If the model has no class names, it gets
    the class names of the data. One error lists all mistakes. The logger "keras_vit" warns of settings that are unusual
    but possible. `keras_vit.training.run` and `keras-vit train` call this function first.

    Args:
        model: A `keras.Model`; compile it first, so that its loss is checked against the labels and outputs.
        data, validation_data: As for `model.fit`, or (images, labels) as arrays.
        epochs, steps_per_epoch: As for `model.fit`.
        batch_size: Int, images per batch if `data` is arrays.
        verbose: 0 or 1; 1 prints the result.

    Raises:
        ValueError: If images, labels, outputs, loss and metrics do not fit each other, a weight is NaN or infinite, no
            weight is trainable, the data never ends and `steps_per_epoch` is None, or a batch cannot be divided equally
            between the devices.

    Example:
    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=2)
    >>> model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> found = preflight(model, (np.zeros((8, 32, 32, 3)), np.array([0, 1] * 4)), epochs=3, verbose=0)
    >>> found.steps, found.images_per_class, round(found.initial_loss, 4)
    (3, (4, 4), 0.6931)
    >>> preflight(model, (np.zeros((8, 32, 32, 3)), np.array([0, 7] * 4)))
    Traceback (most recent call last):
    ValueError: Expected labels from 0 to 1, as the model has 2 outputs. Received: labels from 0 to 7.
    """
    arguments.positive_number("epochs", epochs)
    arguments.positive_int("batch_size", batch_size)
    arguments.optional(arguments.positive_int, "steps_per_epoch", steps_per_epoch)
    arguments.choice("verbose", verbose, (0, 1))
    graph, seen, replicas = functional_graph(model), look(data, batch_size), batch_parts()
    compiled, images = bool(getattr(model, "compiled", False)), seen.images
    heads = classification_heads(model, graph, seen, compiled)
    _, labels, all_labels, num_classes, loss = heads[0] if len(heads) == 1 else (None,) * 5
    problems, doubts = _data_problems(model, graph, seen, heads)
    if validation_data is not None:
        validation = look(validation_data, batch_size, "validation_data")
        found = _data_problems(model, graph, validation, classification_heads(model, graph, validation, compiled))
        for texts, more in zip((problems, doubts), found, strict=True):
            texts += [f"In `validation_data`: {text}" for text in more if text not in texts]
    problems += class_name_problems(model, seen.class_names, getattr(validation_data, "class_names", ()))
    steps = seen.steps if steps_per_epoch is None else steps_per_epoch
    problems += step_problems(seen, steps, steps_per_epoch, replicas)
    parameters = count_parameters(model)
    in_half = any(x.compute_dtype == "float16" and x.trainable_weights for x in sublayers(model, keras.Layer))
    optimizer = model.optimizer if compiled else None
    while optimizer is not None and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = getattr(optimizer, "inner_optimizer", None)
    if compiled and in_half and optimizer is None:
        doubts.append(
            "some layers compute in float16, which rounds small gradients to 0: wrap the optimizer in "
            "keras.optimizers.LossScaleOptimizer"
        )
    if model.weights and not parameters.trainable:
        problems.append("Expected weights to train. Received: a model whose weights are all frozen")
    if bad := non_finite_weights(model):
        problems.append(f"Expected finite weights. Received: {len(bad)} with NaN or infinity, such as {bad[0]!r}")
    if not problems and compiled and loss and isinstance(seen.first[0], np.ndarray):
        x = seen.first[0][: _IMAGES - _IMAGES % replicas] if len(seen.first[0]) > _IMAGES else seen.first[0]
        problems += loss_problems(model, graph, loss, x) or metric_problems(model, loss, num_classes)
    if problems:
        listed = "".join(f"\n{i}. {text}" for i, text in enumerate(problems, 1))
        raise ValueError(problems[0] if len(problems) == 1 else f"The training setup has several mistakes:{listed}")
    give_class_names(model, seen.class_names)
    for text in doubts:
        logger.warning("%s", text)
    initial_loss = None
    if compiled and len(seen.first) > 1:
        initial_loss = float(model.test_on_batch(*seen.first, return_dict=True)["loss"])
        model.reset_metrics()
    loss_text = None
    if compiled and loss is None:
        loss_text = getattr(model.loss, "name", None) or getattr(model.loss, "__name__", None) or str(model.loss)
    elif compiled:
        loss_text = f"{loss.name} of {'logits' if loss.from_logits else 'probabilities'}"
    labels = labels if isinstance(labels, np.ndarray) else None
    counts = count_classes(all_labels, num_classes, loss)
    result = Findings(
        model=model.name,
        num_images=seen.num_images,
        num_classes=num_classes,
        class_names=tuple(map(str, seen.class_names)),
        images_per_class=count_classes(labels, num_classes, loss) if counts is None else counts,
        counted_all=counts is not None,
        batch_shape=None if images is None else (seen.batch_size, *images.shape[1:]),
        values=None if images is None else (float(images.min()), float(images.max())),
        expected_values=input_range(model),
        labels=None if labels is None else f"{labels.dtype} of shape {(seen.batch_size, *labels.shape[1:])}",
        loss=loss_text,
        initial_loss=initial_loss,
        chance_loss=math.log(num_classes) if loss and loss.kind != "multi_hot" and num_classes else None,
        trainable=parameters.trainable,
        frozen=parameters.frozen,
        steps=None if steps is None else round(steps * epochs),
        memory=_memory(model, graph, seen),
        warnings=tuple(doubts),
    )
    if verbose:
        print(printable(result))
    return result


class Data(NamedTuple):
    """The first batches of a dataset, and properties of the dataset. A field is None if it is unknown."""

    images: np.ndarray | None  # images of the first batches; of several inputs, the only one with rank 4
    labels: np.ndarray | dict | list | None  # labels of the first batches, one array for each output
    first: tuple  # the first batch, (x,), (x, y) or (x, y, sample_weight)
    batch_size: int  # number of images in a batch, added up over all processes
    full: bool  # True if all batches of an epoch are known to have the same size
    num_images: int | None  # images per epoch
    steps: float | None  # batches per epoch; math.inf if the data never ends
    class_names: list  # may be empty
    num_classes: int | None
    all_labels: np.ndarray | None  # labels of all images, if the dataset has them


def look(data, batch_size=32, name="data"):
    """Returns the `Data` of a dataset. `data` is anything that `model.fit` takes and that can be read again."""
    check_parts(data)
    # Datasets of `keras_vit.data` have these attributes.
    num_images, all_labels, names = (getattr(data, key, None) for key in ("num_images", "file_labels", "class_names"))
    # A tuple of one array contains all images. A list of one array is a list of batches.
    sizes = (1, 2, 3) if isinstance(data, tuple) else (2, 3)
    if hasattr(data, "shape") or (isinstance(data, (tuple, list)) and len(data) in sizes and is_arrays(data)):
        data = Rows(data, batch_size)
        num_images, all_labels = data.count, (*data.arrays, None)[1]
    elif hasattr(data, "__next__") or isinstance(data, str) or not isinstance(data, (keras.utils.PyDataset, Iterable)):
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected arrays (images, labels), a tf.data.Dataset, a "
            f"PyDataset or another iterable of batches that can be read again. Received: {type(data).__name__}"
        )
    # Two batches are usually enough to find the range of the pixel values. If possible, do not read the last batch,
    # because reading it moves a dataset of `keras_vit.data` to its next epoch.
    steps = num_batches(data)
    few = 2 if steps is None else int(min(2, steps, max(1, steps - 1)))
    found = [keras.tree.map_structure(to_numpy, as_tuple(batch)) for batch in itertools.islice(data, few)]
    if any(part is not None and np.ndim(part) == 0 for part in keras.tree.flatten(found[:1])):
        advice = "Call `.batch(32)` of the dataset"
        raise arguments.invalid(name, "batches of images and labels", "single images", advice=advice)
    size = len(keras.tree.flatten(found[0][0])[0]) if found else 0
    if not size:
        raise ValueError("Invalid value received for argument `data`. Expected a batch of images. Received: none")
    images = [batch[0] for batch in found]
    if not isinstance(images[0], np.ndarray):
        # If the model has several inputs, take the only input of rank 4 as the images.
        parts = [[part for part in keras.tree.flatten(x) if np.ndim(part) == 4] for x in images]
        images = [part[0] if len(part) == 1 else None for part in parts]
    labels = [batch[1] for batch in found if len(batch) > 1]
    spec = keras.tree.flatten(getattr(data, "element_spec", ()))[:1]
    return Data(
        images=_joined(images),
        labels=keras.tree.map_structure(lambda *arrays: _joined(arrays), *labels) if labels else None,
        first=found[0],
        batch_size=size * getattr(data, "num_shards", 1),
        full=any(getattr(part.shape, "rank", 0) and part.shape[0] for part in spec),
        num_images=num_images,
        steps=steps,
        class_names=list(names or []),
        num_classes=getattr(data, "num_classes", None),
        all_labels=to_numpy(all_labels) if isinstance(all_labels, list) else all_labels,
    )


def _joined(parts):
    """Concatenates arrays. Returns the first array if their shapes differ, and None if a part is not an array."""
    if not all(isinstance(part, np.ndarray) for part in parts):
        return None
    return np.concatenate(parts) if len({part.shape[1:] for part in parts}) == 1 else parts[0]


def _data_problems(model, graph, seen, heads):
    """Checks a dataset's images and labels. Returns (errors, warnings), two lists of messages."""
    problems, doubts = [], []
    if seen.images is not None:
        inputs = [] if graph is None else graph.inputs
        inputs = inputs if len(inputs) == 1 else [x for x in inputs if len(x.shape) == 4]
        if len(inputs) == 1 and not arguments.takes(inputs[0].shape[1:], seen.images.shape[1:]):
            wanted = " x ".join("any" if size is None else str(size) for size in inputs[0].shape[1:])
            expected = f"Expected images of {wanted} (height, width, channels), the model's input shape"
            problems.append(f"{expected}. Received: {' x '.join(map(str, seen.images.shape[1:]))}")
        try:
            strange = check_values(model, seen.images)
            doubts += [] if strange is None else [strange]
        except ValueError as error:
            problems.append(str(error))
    if len(seen.first) == 1 and heads[0].loss:
        problems.append(_without_labels(seen.first))
    for name, labels, all_labels, num_classes, loss in heads:
        if not isinstance(labels, np.ndarray) or not num_classes:
            continue
        where = f"For the output {name!r}: " if name else ""
        wrong = task_problem(graph, labels, loss, num_classes) or label_problem(labels, num_classes, loss)
        if not wrong and all_labels is not None and all_labels.ndim == labels.ndim:
            wrong = label_problem(all_labels, num_classes, loss)
        if wrong:
            problems.append(where + wrong)
            continue
        doubts += [where + text for text in label_doubts(labels, all_labels, num_classes, loss)]
        if not name and seen.num_classes and seen.num_classes > num_classes > 1:
            classes = f"{seen.num_classes} outputs, one for each class of the data"
            problems.append(f"Expected a model of {classes}. Received: {num_classes}")
    return problems, doubts


def _without_labels(batch):
    is_dict = isinstance(batch[0], dict)
    received = f"a dict with the keys {sorted(batch[0])}. Make tuples (images, labels)" if is_dict else "only images"
    return f"Expected images with labels to train on. Received: {received}"


def batch_problem(model, batch):
    """Returns an error message if the labels in a batch do not fit a model and its loss, otherwise None.

    A loss or a training step of the user's own may take any labels.
    """
    parts = (type(model).train_step, type(model).compute_loss, model.loss)
    if any(getattr(part, "__module__", "keras").partition(".")[0] not in ("keras", "keras_vit") for part in parts):
        return None
    graph, loss = functional_graph(model), recognised_loss(model.loss)
    if graph is None or loss is None or len(graph.outputs) != 1 or len(graph.outputs[0].shape) != 2:
        return None
    if len(batch) == 1:
        return _without_labels(batch)
    labels, num_classes = batch[1], graph.outputs[0].shape[1]
    if not isinstance(labels, np.ndarray) or not num_classes:
        return None
    return task_problem(graph, labels, loss, num_classes) or label_problem(labels, num_classes, loss)


def class_name_problems(model, names, validation_names=()):
    """Yields messages about class names that differ between a model, its data and its validation data."""
    layer = find_normalization(model)
    named, names, validation_names = (
        [*(x or ())] for x in (getattr(layer, "class_names", ()), names, validation_names)
    )
    if arguments.names_differ(named, names or validation_names):
        yield (
            f"Expected data with the model's classes in the same order, {named[:5]} ... Received: "
            f"{(names or validation_names)[:5]} ... After you replace the head, set `class_names` of the layer "
            f"{layer.name!r}."
        )
    if arguments.names_differ(validation_names, names):
        yield (
            f"Expected `validation_data` with the classes of the training data, {names[:5]} ... "
            f"Received: {validation_names[:5]} ..."
        )


def give_class_names(model, names):
    """Gives `names`, the class names of the data, to a model without class names that has an output for each name."""
    graph, layer = functional_graph(model), find_normalization(model)
    is_unnamed = names and graph is not None and layer is not None and not layer.class_names
    if is_unnamed and gives_classes(graph) and graph.output_shape[1] == len(names):
        layer.class_names = names


def step_problems(seen, steps, steps_per_epoch, replicas):
    """Yields messages about the number of steps, and about batches that the devices cannot share."""
    if steps == np.inf:
        yield "Expected `steps_per_epoch` for data that never ends. Received: None"
    sizes = [seen.batch_size]
    if not seen.full and seen.num_images and steps_per_epoch is None and steps == 1 + seen.num_images // sizes[0]:
        sizes.append(seen.num_images % sizes[0])
    if uneven := sorted(size for size in sizes if size % replicas):
        yield (
            f"Expected batches that {replicas} devices can share. Received: a batch of {uneven[-1]} images. Choose "
            f"`batch_size` as a multiple of {replicas}, and leave out a last batch that is not full (drop_remainder) "
            "or fill it (pad_remainder)."
        )


def _memory(model, graph, seen):
    """Estimates the bytes of weights, gradients, optimizer and activations. Returns None if this fails."""
    try:
        size = seen.images.shape[1:3] if seen.images is not None and seen.images.ndim == 4 else None
        activations = profile(graph, size).activation_bytes * seen.batch_size
    except (AttributeError, TypeError, ValueError):
        return None
    optimizer = getattr(model, "optimizer", None)
    # An optimizer that is not built yet will store one or two moments of each weight and, with `use_ema`, an average.
    copies = (1 if getattr(optimizer, "momentum", None) is not None else 2) + bool(getattr(optimizer, "use_ema", False))
    kept = optimizer.variables if getattr(optimizer, "built", False) else model.trainable_weights * copies
    variables = [*model.weights, *model.trainable_weights, *kept]
    return activations + sum(int(np.prod(v.shape)) * (2 if "16" in str(v.dtype) else 4) for v in variables)
