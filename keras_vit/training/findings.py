"""Checks a model and its data before training, and raises on mistakes."""

import dataclasses
import datetime
import logging
import math
import os

import keras
import numpy as np

from keras_vit.prediction.inputs import graph_of, range_of
from keras_vit.prediction.taps import sublayers
from keras_vit.training import costs
from keras_vit.training.batches import data_problems, look, names_differ, num_replicas, step_problems
from keras_vit.training.labels_and_loss import counts_of, likely_loss, loss_of, loss_problems
from keras_vit.training.trainable import count_parameters

logger = logging.getLogger("keras_vit")


@dataclasses.dataclass(frozen=True)
class Findings:
    """Facts about a training run, None if unknown; `print(findings)` shows a summary."""

    model: str  # its name
    num_images: int | None  # per epoch
    num_classes: int | None  # the model's outputs
    class_names: tuple  # may be empty
    images_per_class: tuple | None  # in all data if `counted_all`, else in the batches read
    counted_all: bool
    batch_shape: tuple | None
    values: tuple | None  # (min, max) of the images read
    expected_values: tuple | None  # (min, max) that the model takes
    labels: str | None  # their dtype and shape
    loss: str | None  # as compiled
    initial_loss: float | None  # of a batch, before training
    chance_loss: float | None  # log(num_classes), about the initial loss of a new head with one class per image
    trainable: int  # parameters
    frozen: int  # parameters
    steps: int | None  # of the whole training
    memory: int | None  # bytes of weights, gradients, optimizer and a batch's activations, estimated
    seconds: float | None  # of the whole training, estimated from a forward pass
    out: str | None  # the folder for checkpoints
    checkpoint: int  # bytes of one
    free_disk: int | None  # free bytes on the folder's disk
    warnings: tuple  # texts

    def __str__(self):
        rows = {"data": f"{self.num_images or 'an unknown number of'} images"}
        if self.num_classes is not None:
            rows["data"] += f", {self.num_classes} outputs"
        if counts := self.images_per_class:
            names = dict(enumerate(self.class_names))
            shown = [f"{names.get(i, i)} {count}" for i, count in enumerate(counts[:6])] + ["..."] * (len(counts) > 6)
            rows["classes"] = f"{', '.join(shown)}{'' if self.counted_all else ', in the batches read'}"
        if self.batch_shape:
            rows["a batch"] = " x ".join(map(str, self.batch_shape)) + " of {:.4g} to {:.4g}".format(*self.values)
            if self.expected_values is not None:
                rows["a batch"] += "; the model takes {:.4g} to {:.4g}".format(*self.expected_values)
        rows["labels"] = self.labels
        rows["loss"] = self.loss or "not compiled"
        if self.initial_loss is not None:
            rows["loss"] += f", {self.initial_loss:.4g} before training"
            rows["loss"] += f"; chance level is {self.chance_loss:.4g}" if self.chance_loss else ""
        rows["parameters"] = f"{self.trainable:,} trained, {self.frozen:,} frozen"
        rows["steps"] = self.steps and f"{self.steps:,}"
        rows["memory"] = self.memory and f"about {costs.size_text(self.memory)}, from the layer shapes"
        rows["time"] = self.seconds and (
            f"about {datetime.timedelta(seconds=round(self.seconds))}, three times that of batches without training"
        )
        if self.out is not None:
            checkpoint, free = costs.size_text(self.checkpoint), costs.size_text(self.free_disk)
            rows["folder"] = f"{self.out}, {checkpoint} a checkpoint, {free} free"
        lines = [f"{self.model} on {keras.backend.backend()}"]
        lines += [f"  {name:12}{text or 'not known'}" for name, text in rows.items()]
        return "\n".join(line[:160] for line in lines)


def preflight(model, data, *, validation_data=None, epochs=1, steps_per_epoch=None, batch_size=32, out=None, verbose=1):
    """Checks a model and its data before training, estimates memory, time and disk space, and returns `Findings`.

    It reads a few batches and runs the model; no weight changes. One error lists all mistakes; the logger "keras_vit"
    warns of what may be intended. `keras_vit.training.run` and `keras-vit train` call this first; before your own
    `model.fit`, call it with the same arguments.

    Args:
        model: A `keras.Model`; compile it first, so that its loss is checked against the labels and outputs.
        data: As `x` of `model.fit`, or (images, labels) as arrays.
        validation_data: As `data`; None for none.
        epochs: Int, passes over the data.
        steps_per_epoch: Int, batches per epoch; None: those of the data.
        batch_size: Int, images per batch if `data` is arrays.
        out: Path of the folder for checkpoints; None for none.
        verbose: 0 or 1; 1 prints the result.

    Raises:
        ValueError: If images, labels, outputs and loss do not fit each other, no weight is trainable, the data never
            ends, the devices cannot share a batch, or the folder is not writable or too full.

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
    seen, graph, replicas = look(data, batch_size), graph_of(model), num_replicas()
    compiled = bool(getattr(model, "compiled", False))
    loss = loss_of(model) if compiled or seen.labels is None else likely_loss(seen.labels)
    num_classes = _num_classes(graph)
    problems, doubts = data_problems(model, graph, seen, num_classes, loss)
    if validation_data is not None:
        validation = look(validation_data, batch_size)
        found = data_problems(model, graph, validation, num_classes, loss)
        for texts, more in zip((problems, doubts), found, strict=True):
            texts += [f"In `validation_data`: {text}" for text in more if text not in texts]
        if names_differ(validation.class_names, seen.class_names):
            problems.append(
                f"Expected the classes of the training data, {seen.class_names[:5]} ..., in `validation_data` as well. "
                f"Received: {validation.class_names[:5]} ..."
            )
    steps = seen.steps if steps_per_epoch is None else steps_per_epoch
    problems += step_problems(seen, steps, steps_per_epoch, replicas)
    parameters, (checkpoint, memory) = count_parameters(model), costs.state_bytes(model)
    in_half = [x for x in sublayers(model, keras.Layer) if x.compute_dtype == "float16" and x.trainable_weights]
    if compiled and in_half and not _scales_loss(model):
        doubts.append(
            "some layers compute in float16, in which small gradients are lost: wrap the optimizer in "
            "keras.optimizers.LossScaleOptimizer"
        )
    if model.weights and not parameters.trainable:
        problems.append("Expected weights to train. Received: a model whose weights are all frozen")
    if out is not None:
        problems += costs.folder_problems(out, costs.CHECKPOINTS * checkpoint)

    computable = not problems and seen.images is not None and all(isinstance(part, np.ndarray) for part in seen.first)
    if computable and compiled and loss:
        few = np.resize(seen.images, (replicas, *seen.images.shape[1:]))
        problems += loss_problems(loss, graph, lambda: np.asarray(model.predict_on_batch(few), "float32"))
    if problems:
        listed = "".join(f"\n{i}. {text}" for i, text in enumerate(problems, 1))
        raise ValueError(problems[0] if len(problems) == 1 else f"The training setup has several mistakes:{listed}")
    for text in doubts:
        logger.warning("%s", text)

    seconds, initial_loss = None, None
    if computable:
        seconds, initial_loss = costs.forward(model, seen.first if compiled else seen.first[:1], replicas)
    total = None if steps is None else round(steps * epochs)
    image_size = seen.images.shape[1:3] if seen.images is not None and seen.images.ndim == 4 else None
    activations = costs.activation_bytes(graph, image_size)
    counts = counts_of(seen.all_labels, num_classes, loss)
    labels = seen.labels
    result = Findings(
        model=model.name,
        num_images=seen.num_images,
        num_classes=num_classes,
        class_names=tuple(map(str, seen.class_names)),
        images_per_class=counts_of(labels, num_classes, loss) if counts is None else counts,
        counted_all=counts is not None,
        batch_shape=None if seen.images is None else (seen.batch_size, *seen.images.shape[1:]),
        values=None if seen.images is None else (float(seen.images.min()), float(seen.images.max())),
        expected_values=range_of(model),
        labels=None if labels is None else f"{labels.dtype} of shape {(seen.batch_size, *labels.shape[1:])}",
        loss=_loss_text(model, loss) if compiled else None,
        initial_loss=initial_loss,
        chance_loss=math.log(num_classes) if loss and loss.kind != "multi_hot" and num_classes else None,
        trainable=parameters.trainable,
        frozen=parameters.frozen,
        steps=total,
        memory=None if activations is None else memory + activations * seen.batch_size,
        seconds=None if seconds is None or total is None else seconds * costs.STEP_PER_FORWARD * total,
        out=None if out is None else os.fspath(out),
        checkpoint=checkpoint,
        free_disk=None if out is None else costs.free_bytes(out),
        warnings=tuple(doubts),
    )
    if verbose:
        print(result)
    return result


def _scales_loss(model):
    optimizer = model.optimizer
    while optimizer is not None and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return optimizer is not None


def _num_classes(graph):
    """Returns the number of outputs if the model has one output vector per image, else None."""
    if graph is None or len(graph.outputs) != 1 or len(graph.outputs[0].shape) != 2:
        return None
    return graph.outputs[0].shape[-1]


def _loss_text(model, loss):
    if loss is None:
        return getattr(model.loss, "name", None) or getattr(model.loss, "__name__", None) or str(model.loss)
    return f"{loss.name} of {'logits' if loss.from_logits else 'probabilities'}"
