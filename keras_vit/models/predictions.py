import functools
from importlib import resources

import keras
import numpy as np
from keras import ops

from keras_vit.models.graph import is_graph


@functools.cache
def imagenet_classes():
    """The 1000 ILSVRC2012 classes in the order of the logits, each (WordNet id, name)."""
    text = resources.files(__package__).joinpath("imagenet1k_classes.txt").read_text(encoding="utf-8")
    return tuple(tuple(line.split(" ", 1)) for line in text.splitlines())


def decode_predictions(predictions, top: int = 5) -> list[list[tuple[str, str, float]]]:
    """Names the most probable ImageNet classes of each image. The names come with the package; nothing is downloaded.

    Args:
        predictions: Probabilities, (batch, 1000), as `keras.ops.softmax(logits)` returns them: an array or tensor.
        top: Int, how many classes to return for each image.

    Returns:
        For each image a list of (WordNet id, name, probability), most probable first.

    Raises:
        ValueError: If the shape is not (batch, 1000), the rows are no probabilities (logits), or `top` is not in
            1..1000.

    Example:

    >>> keras_vit.decode_predictions(np.eye(1000)[[285]], top=1)
    [[('n02124075', 'Egyptian_cat', 1.0)]]
    """
    classes = imagenet_classes()
    p = np.asarray(ops.convert_to_numpy(predictions), "float64")
    if p.ndim != 2 or p.shape[1] != len(classes):
        raise ValueError(f"Expected probabilities of shape (batch, {len(classes)}). Received: shape {p.shape}")
    if not 1 <= top <= len(classes):
        raise ValueError(f"Expected `top` between 1 and {len(classes)}. Received: top={top}")
    # The bound allows for rows that were normalised in half precision.
    if p.size and not (p.min() >= 0 and np.abs(p.sum(axis=1) - 1).max() < 0.02):
        raise ValueError(
            "Expected probabilities: rows of non-negative numbers that sum to 1. Received: numbers from "
            f"{p.min():.4g} to {p.max():.4g}, rows that sum to {p[0].sum():.4g} (the first). "
            "Where these are logits, apply keras.ops.softmax first."
        )
    best = np.argsort(-p, axis=1)[:, :top]
    return [[(*classes[i], float(row[i])) for i in order] for row, order in zip(p, best, strict=True)]


def activation_of(model, postprocess="classify"):
    """The activation that makes probabilities of a model's output.

    Args:
        model: A `keras.Model` with one output, (batch, classes).
        postprocess: "classify" (one class an image) or "multi_label" (any number of them).

    Returns:
        "softmax" or "sigmoid"; None where the output has been through one of them already.

    Raises:
        ValueError: If the model has another output.

    Example:

    >>> from keras_vit.models.predictions import activation_of
    >>> activation_of(keras_vit.ViT("Ti/16")), activation_of(keras_vit.ViT("Ti/16", classifier_activation="softmax"))
    ('softmax', None)
    """
    shapes = [tuple(output.shape) for output in model.outputs]
    if len(shapes) != 1 or len(shapes[0]) != 2 or not shapes[0][1]:
        raise ValueError(
            f"Expected a model with one output of shape (batch, classes). Received: outputs of shapes {shapes}"
        )
    if _activation_behind(model.outputs[0]) is not None:
        return None
    # The softmax of one number is always 1.
    return "sigmoid" if postprocess == "multi_label" or shapes[0][1] == 1 else "softmax"


def _activation_behind(tensor):
    """The activation that a symbolic tensor has been through: "softmax", "sigmoid" or None.

    It is looked for behind what leaves probabilities what they are, as the mean of a distilled model's two heads.
    """
    operation, node_index, tensor_index = tensor._keras_history
    inputs = operation._inbound_nodes[node_index].input_tensors
    while isinstance(operation, keras.Model):
        if is_graph(operation):
            return _activation_behind(operation.outputs[tensor_index])
        if not operation.layers:
            return None
        # Of a class of its own, whose last layer is mostly the one that it calls last.
        operation, inputs, tensor_index = operation.layers[-1], [], 0
    # Keras names the classes of its layers in public, not those of keras.ops.
    kind, activation = type(operation).__name__, getattr(operation, "activation", None)
    for name in ("softmax", "sigmoid"):
        if kind == name.capitalize() or activation is getattr(keras.activations, name):
            return name
    linear = isinstance(operation, keras.layers.Activation) and activation is keras.activations.linear
    if linear or kind == "Cast" or isinstance(operation, (keras.layers.Average, keras.layers.Identity)):
        found = {_activation_behind(x) for x in inputs}
        return found.pop() if len(found) == 1 else None
    return None
