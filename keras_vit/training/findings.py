"""Checks a model and its data before training, and raises on mistakes."""

import dataclasses
import logging
import math

import keras
import numpy as np

from keras_vit.models.profile import profile
from keras_vit.prediction.inputs import functional_graph, input_range
from keras_vit.prediction.taps import sublayers
from keras_vit.training.batches import data_problems, look, names_differ, num_replicas, step_problems
from keras_vit.training.labels_and_loss import classification_heads, count_classes, loss_problems, metric_problems
from keras_vit.training.trainable import count_parameters

logger = logging.getLogger("keras_vit")

# At most this number of images is predicted to distinguish logits from probabilities.
_IMAGES = 32


@dataclasses.dataclass(frozen=True)
class Findings:
    """Facts about a training run, None if unknown; `print(findings)` shows a summary."""

    model: str  # name of the model
    num_images: int | None  # per epoch
    num_classes: int | None  # number of the model's outputs
    class_names: tuple  # may be empty
    images_per_class: tuple | None  # in all data if `counted_all`, else in the batches read
    counted_all: bool
    batch_shape: tuple | None
    values: tuple | None  # (min, max) of the images read
    expected_values: tuple | None  # (min, max) that the model takes
    labels: str | None  # dtype and shape of a batch of labels
    loss: str | None  # as compiled
    initial_loss: float | None  # loss of a batch before training
    chance_loss: float | None  # log(num_classes), about the initial loss of a new head with one class per image
    trainable: int  # number of trainable parameters
    frozen: int  # number of frozen parameters
    steps: int | None  # steps of the whole training
    memory: int | None  # bytes of weights, gradients, optimizer and a batch's activations, estimated
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
        rows["memory"] = self.memory and f"about {self.memory / 1e6:,.1f} MB, from the layer shapes"
        lines = [f"{self.model} on {keras.backend.backend()}"]
        lines += [f"  {name:12}{text or 'not known'}" for name, text in rows.items()]
        return "\n".join(line[:160] for line in lines)


def preflight(model, data, *, validation_data=None, epochs=1, steps_per_epoch=None, batch_size=32, verbose=1):
    """Checks a model and its data before training, estimates the memory, and returns `Findings`.

    It reads a few batches and runs the model; no weight changes. One error lists all mistakes. The logger "keras_vit"
    warns of settings that are unusual but possible. `keras_vit.training.run` and `keras-vit train` call this first.
    Before your own `model.fit`, call it with the same arguments.

    Args:
        model: A `keras.Model`; compile it first, so that its loss is checked against the labels and outputs.
        data: As `x` of `model.fit`, or (images, labels) as arrays.
        validation_data: As `data`; None for none.
        epochs: Int, passes over the data.
        steps_per_epoch: Int, batches per epoch; None: as many as the data has.
        batch_size: Int, images per batch if `data` is arrays.
        verbose: 0 or 1; 1 prints the result.

    Raises:
        ValueError: If images, labels, outputs, loss and metrics do not fit each other, no weight is trainable, the data
            never ends, or the devices cannot share a batch.

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
    seen, graph, replicas = look(data, batch_size), functional_graph(model), num_replicas()
    compiled = bool(getattr(model, "compiled", False))
    heads = classification_heads(model, graph, seen.labels, seen.all_labels, compiled)
    _, labels, all_labels, num_classes, loss = heads[0] if len(heads) == 1 else (None,) * 5
    problems, doubts = data_problems(model, graph, seen, heads)
    if validation_data is not None:
        validation = look(validation_data, batch_size)
        others = classification_heads(model, graph, validation.labels, validation.all_labels, compiled)
        found = data_problems(model, graph, validation, others)
        for texts, more in zip((problems, doubts), found, strict=True):
            texts += [f"In `validation_data`: {text}" for text in more if text not in texts]
        if names_differ(validation.class_names, seen.class_names):
            problems.append(
                f"Expected the classes of the training data, {seen.class_names[:5]} ..., in `validation_data` as well. "
                f"Received: {validation.class_names[:5]} ..."
            )
    steps = seen.steps if steps_per_epoch is None else steps_per_epoch
    problems += step_problems(seen, steps, steps_per_epoch, replicas)
    parameters = count_parameters(model)
    in_half = [x for x in sublayers(model, keras.Layer) if x.compute_dtype == "float16" and x.trainable_weights]
    if compiled and in_half and not _scales_loss(model):
        doubts.append(
            "some layers compute in float16, in which small gradients are lost: wrap the optimizer in "
            "keras.optimizers.LossScaleOptimizer"
        )
    if model.weights and not parameters.trainable:
        problems.append("Expected weights to train. Received: a model whose weights are all frozen")

    if not problems and compiled and loss and isinstance(seen.first[0], np.ndarray):
        x = seen.first[0][: _IMAGES - _IMAGES % replicas] if len(seen.first[0]) > _IMAGES else seen.first[0]
        problems += loss_problems(loss, graph, lambda: np.asarray(model.predict_on_batch(x), "float32"))
        problems += [] if problems else metric_problems(model, loss, num_classes)
    if problems:
        listed = "".join(f"\n{i}. {text}" for i, text in enumerate(problems, 1))
        raise ValueError(problems[0] if len(problems) == 1 else f"The training setup has several mistakes:{listed}")
    for text in doubts:
        logger.warning("%s", text)

    initial_loss = None
    if compiled and len(seen.first) > 1:
        initial_loss = float(model.test_on_batch(*seen.first, return_dict=True)["loss"])
        model.reset_metrics()
    total = None if steps is None else round(steps * epochs)
    image_size = seen.images.shape[1:3] if seen.images is not None and seen.images.ndim == 4 else None
    activations = _activation_bytes(graph, image_size)
    labels = labels if isinstance(labels, np.ndarray) else None
    counts = count_classes(all_labels, num_classes, loss)
    result = Findings(
        model=model.name,
        num_images=seen.num_images,
        num_classes=num_classes,
        class_names=tuple(map(str, seen.class_names)),
        images_per_class=count_classes(labels, num_classes, loss) if counts is None else counts,
        counted_all=counts is not None,
        batch_shape=None if seen.images is None else (seen.batch_size, *seen.images.shape[1:]),
        values=None if seen.images is None else (float(seen.images.min()), float(seen.images.max())),
        expected_values=input_range(model),
        labels=None if labels is None else f"{labels.dtype} of shape {(seen.batch_size, *labels.shape[1:])}",
        loss=_loss_text(model, loss) if compiled else None,
        initial_loss=initial_loss,
        chance_loss=math.log(num_classes) if loss and loss.kind != "multi_hot" and num_classes else None,
        trainable=parameters.trainable,
        frozen=parameters.frozen,
        steps=total,
        memory=None if activations is None else _state_bytes(model) + activations * seen.batch_size,
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


def _activation_bytes(model, image_size):
    """Estimates the bytes of activations that training keeps per image; None if the layers are unknown."""
    try:
        return profile(model, image_size).activation_bytes
    except (AttributeError, TypeError, ValueError):
        return None


def _state_bytes(model):
    """Returns the bytes of weights, optimizer and gradients; estimates one or two moments for an unbuilt optimizer."""
    weights, trained = (_bytes(part) for part in (model.weights, model.trainable_weights))
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built:
        return weights + _bytes(optimizer.variables) + trained
    moments = 1 if getattr(optimizer, "momentum", None) is not None else 2
    return weights + trained * (moments + bool(getattr(optimizer, "use_ema", False)) + 1)


def _bytes(variables):
    return sum(int(np.prod(v.shape)) * (2 if "16" in str(v.dtype) else 4) for v in variables)


def _loss_text(model, loss):
    if loss is None:
        return getattr(model.loss, "name", None) or getattr(model.loss, "__name__", None) or str(model.loss)
    return f"{loss.name} of {'logits' if loss.from_logits else 'probabilities'}"
