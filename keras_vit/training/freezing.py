import math
from typing import NamedTuple

import keras

from keras_vit import arguments
from keras_vit.models.backbone import parts_of


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

    The head is every layer above the backbone, whatever its name: also one of your own on a model without a head. Where
    such a model is nested as a layer in yours, all layers around it are trained too. Compile the model afterwards.
    Dropout and stochastic depth of frozen blocks still act in training.

    Args:
        model: A model of this package's builders, with a head of its own or of yours, or one in which such a model is
            nested; for a BiT, blocks are its units.
        blocks: Int, how many blocks from the first are frozen, with the embedding below them; 0 freezes the embedding
            alone. None freezes all but the head.

    Returns:
        `Parameters(trainable, frozen)`, the numbers of parameters.

    Raises:
        ValueError: If the model has fewer blocks or LoRA weights, or nothing would be left to train.

    Example:

    >>> freeze(keras_vit.ViT("Ti/16", num_classes=10))
    Parameters(trainable=1930, frozen=5524416)
    >>> backbone = keras_vit.ViT("Ti/16", num_classes=0)
    >>> freeze(keras.Model(backbone.input, keras.layers.Dense(10)(backbone.output)))
    Parameters(trainable=1930, frozen=5524416)
    """
    parts = parts_of(model)
    if has_lora(model):
        raise ValueError(f"Expected a model without LoRA, which chose what to train. Received: model {model.name!r}")
    num_blocks = len(parts.blocks)
    if blocks is not None and arguments.non_negative_int("blocks", blocks) > num_blocks:
        raise ValueError(
            f"Invalid value received for argument `blocks`. Expected at most {num_blocks}, the model's depth. "
            f"Received: {blocks!r}"
        )
    trained, frozen = list(parts.others), [*parts.below, *parts.blocks[:blocks]]
    (frozen if blocks is None else trained).extend(parts.above)
    trained += [] if blocks is None else parts.blocks[blocks:]
    # A layer that is not built yet may have weights once it is.
    if not any(layer.weights or not layer.built for layer in trained):
        raise ValueError(
            f"Expected a model with something left to train. Received: model {model.name!r}, on whose frozen layers "
            "stands none with weights. Put a head on it, as with num_classes, or freeze fewer blocks."
        )
    unfreeze(model)
    for layer in frozen:
        layer.trainable = False
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
