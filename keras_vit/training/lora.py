"""Low-rank adaptation of a ViT's projections, through Keras' own `Dense.enable_lora`."""

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers import TransformerBlock
from keras_vit.models.backbone import parts_of
from keras_vit.training.freezing import Parameters, count_parameters, has_lora, unfreeze


def enable_lora(
    model: keras.Model, rank: int, *, alpha: float | None = None, train_head: bool = True, train_norms: bool = False
) -> Parameters:
    """Gives the attention and MLP projections of each block low-rank updates, and freezes the rest, in place.

    Until it is trained the model computes what it did. Compile it afterwards, and leave `trainable` of its layers as it
    is: Keras would unfreeze the kernels too. A .keras file keeps the updates and what is frozen, so that a reloaded
    model trains on, and `keras.models.clone_model` makes them anew. `merge_lora` makes a plain model.

    Args:
        model: A ViT of this package's builders, with a head of its own or of yours; or a model in which one is nested.
        rank: Int, the rank of the updates.
        alpha: Float, the updates' factor is `alpha / rank`; None for `rank`.
        train_head: Bool, whether all layers above the backbone are trained too, and all around a nested one.
        train_norms: Bool, whether all norms are trained too.

    Returns:
        `Parameters(trainable, frozen)`, the numbers of parameters.

    Raises:
        ValueError: If the model has no transformer blocks, or LoRA already.

    Example:

    >>> enable_lora(keras_vit.ViT("Ti/16", num_classes=10), rank=4)
    Parameters(trainable=149386, frozen=5524416)

    Reference: [arXiv 2106.09685](https://arxiv.org/abs/2106.09685), which adapts query and value alone. Here query, key
        and value are one projection, whose update has one down-projection for the three.
    """
    arguments.positive_int("rank", rank)
    if alpha is not None:
        arguments.positive_number("alpha", alpha)
    parts = _parts(model)
    if has_lora(model):
        raise ValueError(f"Expected a model without LoRA. Received: model {model.name!r}, which has it already.")
    unfreeze(model)
    for layer in (*parts.below, *parts.above, *(() if train_head else parts.others)):
        layer.trainable = train_norms and isinstance(layer, keras.layers.LayerNormalization)
    for block in parts.blocks:
        for dense in block.dense_layers():
            dense.enable_lora(rank, lora_alpha=alpha)
        for weight in block.weights:
            *_, layer_name, name = weight.path.split("/")
            weight.trainable = name.startswith("lora_kernel") or (train_norms and "norm" in layer_name)
    return count_parameters(model)


def merge_lora(model: keras.Model) -> keras.Model:
    """Builds the plain model that a model with LoRA stands for: each update is added to its kernel.

    Args:
        model: A ViT that `enable_lora` was called on; it stays as it is.

    Returns:
        A new `keras.Model` with the same outputs, all of it trainable and not compiled.

    Raises:
        ValueError: If the model has no LoRA, or is quantized.

    Example:

    >>> model = keras_vit.ViT("Ti/16", num_classes=10)
    >>> _ = enable_lora(model, rank=4)
    >>> merge_lora(model).count_params()
    5526346
    """
    if not has_lora(model):
        raise ValueError(f"Expected a model with LoRA. Received: model {model.name!r}")
    layers = [dense for block in _parts(model).blocks for dense in block.dense_layers()]
    if modes := {dense.quantization_mode for dense in layers} - {None}:
        raise ValueError(
            "Expected a model that is not quantized: merge it before, and quantize what this returns. "
            f"Received: model {model.name!r}, quantized to {', '.join(modes)}"
        )
    merged = type(model).from_config(_without_lora(model.get_config()))
    unfreeze(merged)
    # By order: two layers of a nested model may have weights of one path.
    for weight, value in zip(merged.weights, (w for w in model.weights if "lora_kernel" not in w.path), strict=True):
        # A copy: on JAX two models that share an array lose it, since training and predicting donate it.
        weight.assign(ops.copy(value))
    plain = [dense for block in _parts(merged).blocks for dense in block.dense_layers()]
    for old, new in zip(layers, plain, strict=True):
        state = {}
        old.save_own_variables(state)
        new.load_own_variables({key: ops.convert_to_numpy(value).copy() for key, value in state.items()})
    return merged


def _without_lora(config):
    """A model's config without what its layers' tell of LoRA."""
    if isinstance(config, list):
        return [_without_lora(each) for each in config]
    if not isinstance(config, dict):
        return config
    config = {key: _without_lora(value) for key, value in config.items()}
    if isinstance(config.get("changes"), dict):
        config["changes"].pop("lora", None)
    return config


def _parts(model):
    parts = parts_of(model)
    if not all(isinstance(block, TransformerBlock) for block in parts.blocks):
        raise ValueError(
            "Expected a ViT of this package's builders, with transformer blocks. "
            f"Received: model {model.name!r} with blocks {', '.join(block.name for block in parts.blocks)}"
        )
    return parts
