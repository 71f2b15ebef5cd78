"""Chooses the weights to train: freezes layers, or adds LoRA with Keras' `Dense.enable_lora`."""

import math
from typing import NamedTuple

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.config import config_of
from keras_vit.layers.base import CompositeLayer
from keras_vit.models.backbone import find_parts
from keras_vit.prediction.taps import sublayers


class Parameters(NamedTuple):
    """Numbers of trainable and frozen parameters."""

    trainable: int
    frozen: int


def count_parameters(model: keras.Model) -> Parameters:
    """Counts the trainable and the frozen parameters."""
    trainable, frozen = (
        sum(math.prod(weight.shape) for weight in weights)
        for weights in (model.trainable_weights, model.non_trainable_weights)
    )
    return Parameters(trainable, frozen)


def freeze(model: keras.Model, blocks: int | None = None) -> Parameters:
    """Freezes the embedding and the first blocks of a model; returns `Parameters(trainable, frozen)`.

    All other layers become trainable. Compile the model afterwards. Dropout and stochastic depth of frozen blocks stay
    active in training.

    Args:
        model: A model of this package, with its original head or your own, or a model that contains such a model as a
            layer. The blocks of a BiT are its residual units.
        blocks: Int, the number of blocks to freeze. The embedding is always frozen too. None freezes all layers except
            the head. The head is all layers after the backbone and, if the backbone is nested in another model, all
            layers outside of the backbone.

    Raises:
        ValueError: If `blocks` is larger than the number of blocks, the model has LoRA weights, no weights are left to
            train, or a layer to train is quantized to integers.

    Example:
    >>> freeze(keras_vit.ViT("Ti/16", num_classes=10))
    Parameters(trainable=1930, frozen=5524416)
    """
    parts = find_parts(model)
    if has_lora(model):
        raise ValueError(f"Expected a model without LoRA, as LoRA also freezes layers. Received: model {model.name!r}")
    num_blocks = len(parts.blocks)
    if blocks is not None and arguments.non_negative_int("blocks", blocks) > num_blocks:
        raise arguments.invalid("blocks", f"at most {num_blocks}, the model's depth", blocks)
    trained, frozen = list(parts.others), [*parts.below, *parts.blocks[:blocks]]
    (frozen if blocks is None else trained).extend(parts.above)
    trained += [] if blocks is None else parts.blocks[blocks:]
    # A layer that is not built yet may get weights later.
    if not any(layer.weights or not layer.built for layer in trained):
        raise ValueError(
            f"Expected a model with weights left to train. Received: model {model.name!r}, which has no weights "
            "above its frozen layers. Add a head, for example with num_classes, or freeze fewer blocks."
        )
    _refuse_quantized(model, trained)
    unfreeze(model)
    for layer in frozen:
        layer.trainable = False
    return count_parameters(model)


def unfreeze(model: keras.Model) -> Parameters:
    """Makes a model without LoRA fully trainable; returns `Parameters(trainable, frozen)`.

    Example:
    >>> model = keras_vit.ViT("Ti/16", num_classes=10)
    >>> _ = freeze(model)
    >>> unfreeze(model)
    Parameters(trainable=5526346, frozen=0)
    """
    # Set False first. If `trainable` is True, setting True again does nothing on TensorFlow, and frozen inner layers
    # would stay frozen.
    arguments.model(model).trainable = False
    model.trainable = True
    return count_parameters(model)


def has_lora(model: keras.Model) -> bool:
    """Returns True if any layer of a model has LoRA weights."""
    return any("lora_kernel" in weight.path for weight in arguments.model(model).weights)


def enable_lora(
    model: keras.Model, rank: int, *, alpha: float | None = None, train_head: bool = True, train_norms: bool = False
) -> Parameters:
    """Adds LoRA to the dense layers (attention, MLP) of each block and freezes the backbone's other weights, in place.

    The outputs do not change before training. Compile the model afterwards. Do not set `trainable` of the model's
    layers, since Keras would unfreeze the kernels too. A .keras file stores the LoRA weights and which layers are
    frozen. In a clone by `keras.models.clone_model`, the LoRA weights have new initial values. Returns
    `Parameters(trainable, frozen)`.

    Args:
        model: A ViT, CoAtNet or VT-ResNet of this package, with its original head or your own, or a model that
            contains such a model as a layer.
        rank: Int of at least 1, the rank of the updates.
        alpha: Float above 0. The updates are multiplied by `alpha / rank`, and None multiplies them by 1.
        train_head: Bool, whether to train the head too. The head is all layers after the backbone and, if the backbone
            is nested in another model, all layers outside of the backbone.
        train_norms: Bool, whether to train norms too: the layer norms outside of the blocks and all norms of the
            blocks. Residual units of a ResNet stay frozen.

    Raises:
        ValueError: If the model has no transformer blocks or already has LoRA, or the head to train is quantized.

    Example:
    >>> enable_lora(keras_vit.ViT("Ti/16", num_classes=10), rank=4)
    Parameters(trainable=149386, frozen=5524416)

    Reference: [arXiv 2106.09685](https://arxiv.org/abs/2106.09685), which adapts only query and value. In this
    package, one dense layer computes query, key and value, so they share LoRA's down-projection.
    """
    arguments.positive_int("rank", rank)
    arguments.optional(arguments.positive_number, "alpha", alpha)
    arguments.each(arguments.boolean, train_head=train_head, train_norms=train_norms)
    parts = _parts(model)
    if has_lora(model):
        raise ValueError(f"Expected a model without LoRA. Received: model {model.name!r}, which has it already.")
    if train_head:
        _refuse_quantized(model, parts.others)
    unfreeze(model)
    for layer in (*parts.below, *parts.above, *(() if train_head else parts.others)):
        layer.trainable = train_norms and isinstance(layer, keras.layers.LayerNormalization)
    for block in parts.blocks:
        # The residual units of a ResNet have no dense layers, so freeze them and the statistics of their norms.
        dense_layers = _dense_layers([block])
        block.trainable = bool(dense_layers)
        for dense in dense_layers:
            dense.enable_lora(rank, lora_alpha=alpha)
        for weight in block.weights if block.trainable else ():
            *_, layer_name, name = weight.path.split("/")
            of_norm = "norm" in layer_name and name in ("gamma", "beta")
            weight.trainable = name.startswith("lora_kernel") or (train_norms and of_norm)
        if block.trainable:
            block.keep_statistics()
    return count_parameters(model)


def merge_lora(model: keras.Model) -> keras.Model:
    """Returns a new model without LoRA, in which each LoRA update is added to its kernel.

    The new model is fully trainable and is not compiled.

    Args:
        model: A model with LoRA from `enable_lora`. This model is not changed. If it has no LoRA or is quantized, a
            ValueError is raised.

    Example:
    >>> model = keras_vit.ViT("Ti/16", num_classes=10)
    >>> _ = enable_lora(model, rank=4)
    >>> merge_lora(model).count_params()
    5526346
    """
    if not has_lora(model):
        raise ValueError(f"Expected a model with LoRA. Received: model {model.name!r}")
    layers = _dense_layers(_parts(model).blocks)
    if modes := {dense.quantization_mode for dense in layers} - {None}:
        expected = "Expected a model that is not quantized. Merge before you quantize the model"
        raise ValueError(f"{expected}. Received: model {model.name!r}, quantized to {', '.join(modes)}")
    merged = type(model).from_config(_without_lora(model.get_config()))
    unfreeze(merged)
    # Match weights by order, because two layers of a nested model may have weights with the same path.
    for weight, value in zip(merged.weights, (w for w in model.weights if "lora_kernel" not in w.path), strict=True):
        # Copy the value. On JAX, training and predicting can delete a model's arrays, so two models must not share
        # arrays.
        weight.assign(ops.copy(value))
    plain = _dense_layers(_parts(merged).blocks)
    for old, new in zip(layers, plain, strict=True):
        state = {}
        old.save_own_variables(state)
        new.load_own_variables({key: ops.convert_to_numpy(value).copy() for key, value in state.items()})
    return merged


def _refuse_quantized(model, layers):
    """Raises an error if a layer to train has an integer kernel, which has no gradient. Float8 kernels are allowed."""
    within = [inner for layer in layers for inner in sublayers(layer, keras.Layer)]
    if names := [layer.path for layer in within if getattr(layer, "quantization_mode", None) not in (None, "float8")]:
        raise ValueError(
            "Expected that no layer to train is quantized. Quantize only frozen layers, or quantize after training. "
            f"Received: model {model.name!r} with quantized {', '.join(names)}"
        )


def _without_lora(config):
    if isinstance(config, list):
        return [_without_lora(each) for each in config]
    if not isinstance(config, dict):
        return config
    config = {key: _without_lora(value) for key, value in config.items()}
    if isinstance(config.get("changes"), dict):
        config["changes"].pop("lora", None)
    return config


def _parts(model):
    parts = find_parts(model)
    # The only dense layers of an EfficientNet are in squeeze-and-excitation, which `enable_lora` does not support.
    if config_of(parts.models[-1]).family == "efficientnet" or not _dense_layers(parts.blocks):
        raise ValueError(
            "Expected a model of this package's builders, with transformer blocks. "
            f"Received: model {model.name!r} with blocks {', '.join(block.name for block in parts.blocks)}"
        )
    return parts


def _dense_layers(blocks):
    return [dense for block in blocks if isinstance(block, CompositeLayer) for dense in block.dense_layers()]
