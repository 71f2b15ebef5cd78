"""Converts model outputs to probabilities of named classes."""

import collections
import functools
import logging
import numbers
from importlib import resources

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.config import find_normalization
from keras_vit.models.backbone import gives_features
from keras_vit.models.graph import activation_behind
from keras_vit.models.losses import names_of_loss
from keras_vit.prediction.inputs import real_array, refuse_trainer

logger = logging.getLogger("keras_vit")

# `_OF_LOSSES` is {task: (activation of the outputs, losses)}. Names of losses are in lower case, without underscores.
_BINARY = ("binarycrossentropy", "binaryfocalcrossentropy")
_OF_NUMBERS = ("meansquarederror", "meanabsoluteerror", "meanabsolutepercentageerror", "meansquaredlogarithmicerror")
_OF_LOSSES = {
    "multi_label": ("sigmoid", _BINARY),
    "regression": (None, (*_OF_NUMBERS, "huber", "logcosh", "poisson")),
}


@functools.cache
def imagenet_classes():
    """Returns a tuple (WordNet id, name) for each of the 1000 ILSVRC2012 classes, in the order of the logits."""
    text = resources.files(__package__).joinpath("imagenet1k_classes.txt").read_text(encoding="utf-8")
    return tuple(tuple(line.split(" ", 1)) for line in text.splitlines())


def decode_predictions(
    predictions, model: keras.Model | None = None, top: int | None = None
) -> list[list[tuple[str, str, float]]]:
    """Returns (id, name, probability) of each image's most probable classes, most probable first.

    The id of an ImageNet class is its WordNet id. The id of any other class is its index. Nothing is downloaded.

    Args:
        predictions: Probabilities, (batch, classes), such as `keras.ops.softmax(logits)`.
        model: The model that computed the predictions. Its `class_names` are the names of the classes. If there are
            no `class_names`, 1000 classes have ImageNet's names, and any other number of classes has indices as names.
            None: the predictions must be for ImageNet's 1000 classes.
        top: Int, the number of classes per image. None means 5, or all if there are fewer.

    Raises:
        ValueError: If the shape or `top` does not fit the classes, or the numbers are not probabilities.

    Example:

    >>> keras_vit.decode_predictions(np.eye(1000)[[285]], top=1)
    [[('n02124075', 'Egyptian_cat', 1.0)]]
    >>> model = keras_vit.ViT("Ti/16", num_classes=2, num_layers=1, class_names=["cat", "dog"])
    >>> keras_vit.decode_predictions([[0.25, 0.75]], model, top=1)
    [[('1', 'dog', 0.75)]]
    """
    if model is not None and not isinstance(model, keras.Model):
        raise arguments.invalid("model", "a keras.Model or None (pass the number of classes per image as `top`)", model)
    classes = imagenet_classes() if model is None else ids_and_names(model)
    p = real_array("predictions", predictions, finite=False).astype("float64")
    if p.ndim != 2 or p.shape[1] != len(classes):
        advice = " Pass the model for other classes." if model is None else ""
        expected = f"`predictions` to be probabilities of shape (batch, {len(classes)})"
        raise ValueError(f"Expected {expected}. Received: shape {p.shape}.{advice}")
    top = checked_top(top, classes)
    # If each class has a separate sigmoid, rows need not sum to 1.
    separate = model is not None and (
        p.shape[1] == 1 or postprocess_kind(model) == "multi_label" or activation_behind(model.outputs[0]) == "sigmoid"
    )
    # The tolerance allows for a softmax in half precision.
    valid = p.size == 0 or (p.min() >= 0 and (p.max() <= 1 if separate else np.abs(p.sum(axis=1) - 1).max() < 0.02))
    if not valid:
        raise ValueError(
            "Expected `predictions` to be probabilities: rows of non-negative numbers that "
            f"{'are at most 1' if separate else 'sum to 1'}. "
            f"Received: numbers from {p.min():.4g} to {p.max():.4g}. The first row sums to {p[0].sum():.4g}. "
            "If these are logits, apply keras.ops.softmax first."
        )
    return most_probable(p, classes, top)


def checked_top(top, classes):
    """Returns `top`, by default 5 or all classes if there are fewer; raises if it is out of range."""
    top = min(5, len(classes)) if top is None else top
    if isinstance(top, bool) or not isinstance(top, numbers.Integral) or not 1 <= top <= len(classes):
        raise ValueError(f"Expected `top` between 1 and {len(classes)}. Received: top={top!r}")
    return top


def most_probable(probabilities, classes, top):
    """Returns the `top` classes of each row as (id, name, probability), most probable first."""
    # With a stable sort, the first of several equal classes comes first, as with `argmax`.
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    return [[(*classes[i], float(row[i])) for i in order] for row, order in zip(probabilities, best, strict=True)]


def ids_and_names(model):
    """Does the same as `outputs_named`, but raises ValueError for a regression model."""
    if postprocess_kind(model) is None:
        raise ValueError(f"Expected a classifier. Received: model {model.name!r} with task='regression'.")
    return outputs_named(model)


def folder_names(model):
    """Returns a different name for each class: its name, or its id if names are repeated, as in ImageNet."""
    ids, names = zip(*ids_and_names(model), strict=True)
    return list(names if len(set(names)) == len(names) else ids)


def distinct_names(classes):
    """Returns a different name for each (id, name): the name, or "name (id)" if the name is repeated."""
    count = collections.Counter(name for _, name in classes)
    return [f"{name} ({id})" if count[name] > 1 else name for id, name in classes]


def gives_classes(model):
    """Returns True if `ids_and_names` can name the classes of a model."""
    return _has_one_row(model) and not gives_features(model) and postprocess_kind(model) is not None


def outputs_named(model):
    """Returns (id, name) for each output: the model's class names, ImageNet's for 1000 classes, or indices."""
    num_classes = _only_output(model).shape[1]
    if names := fitting_class_names(model):
        return [(str(i), name) for i, name in enumerate(names)]
    if gives_features(model):
        raise ValueError(f"Expected a model with a head. Received: model {model.name!r}, which outputs features.")
    if num_classes == len(imagenet_classes()) and postprocess_kind(model) is not None:
        return imagenet_classes()
    return [(str(i), str(i)) for i in range(num_classes)]


def fitting_class_names(model):
    """Returns the class names of a model; None if there are none, or if there is not one name per output."""
    names = getattr(find_normalization(model), "class_names", None)
    if not _has_one_row(model):
        return None
    num_classes = model.outputs[0].shape[1]
    if names and len(names) != num_classes:
        message = "Model %r has %d class names and %d outputs: the names belong to another head and are ignored."
        logger.warning(message, model.name, len(names), num_classes)
        return None
    return names


def output_activation(model, postprocess=None):
    """Returns the activation that is still to be applied to the outputs: "softmax", "sigmoid" or None.

    `postprocess`, "classify" or "multi_label", replaces the model's task.
    """
    output = _only_output(model)
    if activation_behind(output) is not None:
        return None
    postprocess = postprocess_kind(model) if postprocess is None else postprocess
    if postprocess is None:
        return None
    # The softmax of one number is always 1, so a single output needs a sigmoid.
    return "sigmoid" if postprocess == "multi_label" or output.shape[1] == 1 else "softmax"


def postprocess_kind(model):
    """Returns the postprocessing for a model's task: "classify", "multi_label", or None for regression."""
    task = getattr(find_normalization(model), "task", "single_label")
    return {"regression": None, "single_label": "classify"}.get(task, task)


def prediction_activation(model):
    """Returns the same as `output_activation`. Raises ValueError if the model's loss needs another activation."""
    activation = output_activation(model)
    owners = names_of_loss(getattr(model, "loss", None))
    for setting, (wanted, losses) in _OF_LOSSES.items():
        known = any(owner.lower().replace("_", "") in losses for owner in owners)
        if activation is not None and activation != wanted and known:
            raise ValueError(
                f"Expected a model with task={setting!r}, because its loss is {owners[0]}. Received: model "
                f"{model.name!r}, whose task uses a {activation}. Pass task={setting!r} to the "
                f'builder or `from_pretrained`, or set model.get_layer("normalization").task = {setting!r}.'
            )
    return activation


def final_activation(model):
    """Returns the activation that produces the predictions, in the model or after it. Returns None for regression."""
    regression = postprocess_kind(model) is None
    return output_activation(model) or (None if regression else activation_behind(_only_output(model)))


def mean_probabilities(outputs, activation):
    """Applies an activation to several float32 arrays of outputs, and averages them."""
    if activation is not None:
        outputs = [ops.convert_to_numpy(getattr(ops, activation)(ops.convert_to_tensor(x))) for x in outputs]
    return np.mean(outputs, axis=0)


def _has_one_row(model):
    """Returns True if a model has a single output, one vector per image."""
    outputs = getattr(model, "outputs", None) or ()
    return len(outputs) == 1 and len(outputs[0].shape) == 2


def _only_output(model):
    """Returns the output of a model, (batch, classes); raises ValueError for several outputs or other shapes."""
    refuse_trainer(model)
    shapes = [tuple(output.shape) for output in getattr(model, "outputs", None) or ()]
    if len(shapes) != 1 or len(shapes[0]) != 2 or not shapes[0][1]:
        raise ValueError(
            f"Expected a model with one output of shape (batch, classes). Received: outputs of shapes {shapes}"
        )
    return model.outputs[0]
