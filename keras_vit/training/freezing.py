import math
from typing import NamedTuple

import keras

from keras_vit.layers import arguments
from keras_vit.training.depth import layer_depths

HEADS = ("head", "head_dist")


class Parameters(NamedTuple):
    """How many parameters of a model are trained, and how many are not."""

    trainable: int
    frozen: int


def count_parameters(model: keras.Model) -> Parameters:
    """Counts the parameters that training changes and those that it leaves.

    Args:
        model: A `keras.Model`.

    Returns:
        `Parameters(trainable, frozen)`.

    Example:

    >>> count_parameters(keras_vit.ViT("Ti/16", num_classes=10))
    Parameters(trainable=5526346, frozen=0)
    """
    trainable, frozen = (
        sum(math.prod(weight.shape) for weight in weights)
        for weights in (model.trainable_weights, model.non_trainable_weights)
    )
    return Parameters(trainable, frozen)


def freeze(model: keras.Model, blocks: int | None = None) -> Parameters:
    """Freezes the lower part of a model; all that is above it is trained, also if it was frozen before.

    Compile the model afterwards. Dropout and stochastic depth of frozen blocks still act in training.

    Args:
        model: A model of this package's builders; for a BiT, blocks are its units.
        blocks: Int, how many blocks from the first are frozen, with the embedding below them; 0 freezes the embedding
            alone. None freezes all but the head.

    Returns:
        `Parameters(trainable, frozen)`, the numbers of parameters.

    Raises:
        ValueError: If the model has fewer blocks or LoRA weights.

    Example:

    >>> freeze(keras_vit.ViT("Ti/16", num_classes=10))
    Parameters(trainable=1930, frozen=5524416)
    """
    depths = layer_depths(model)
    if has_lora(model):
        raise ValueError(f"Expected a model without LoRA, which chose what to train. Received: model {model.name!r}")
    num_blocks = max(depths.values()) - 1
    if blocks is not None and arguments.non_negative_int("blocks", blocks) > num_blocks:
        raise ValueError(
            f"Invalid value received for argument `blocks`. Expected at most {num_blocks}, the model's depth. "
            f"Received: {blocks!r}"
        )
    unfreeze(model)
    for layer in model.layers:
        layer.trainable = layer.name in HEADS if blocks is None else depths[layer.name] > blocks
    return count_parameters(model)


def unfreeze(model: keras.Model) -> Parameters:
    """Makes all of a model trainable.

    Args:
        model: A `keras.Model` without LoRA.

    Returns:
        `Parameters(trainable, frozen)`, the numbers of parameters.

    Example:

    >>> model = keras_vit.ViT("Ti/16", num_classes=10)
    >>> _ = freeze(model)
    >>> unfreeze(model)
    Parameters(trainable=5526346, frozen=0)
    """
    # On TensorFlow an attribute set to what it is already does nothing, and layers below would stay frozen.
    model.trainable = False
    model.trainable = True
    return count_parameters(model)


def has_lora(model: keras.Model) -> bool:
    """Whether any layer of a model has LoRA weights."""
    return any("lora_kernel" in weight.path for weight in model.weights)
