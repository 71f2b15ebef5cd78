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
    is: Keras would unfreeze the kernels too. Saved and reloaded it is a plain model with the updates merged into the
    kernels, which `merge_lora` gives without a file.

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
        for dense in _projections(block):
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
        ValueError: If the model has no LoRA.

    Example:

    >>> model = keras_vit.ViT("Ti/16", num_classes=10)
    >>> _ = enable_lora(model, rank=4)
    >>> merge_lora(model).count_params()
    5526346
    """
    if not has_lora(model):
        raise ValueError(f"Expected a model with LoRA. Received: model {model.name!r}")
    # By identity, and below by order: two layers of a nested model may have weights of one path.
    values = {id(weight): weight for weight in model.weights if "lora_kernel" not in weight.path}
    for block in _parts(model).blocks:
        for dense in _projections(block):
            # Not `dense.kernel`, which mixed precision rounds.
            kernel = next(weight for weight in dense.weights if weight.name == "kernel")
            update = ops.matmul(dense.lora_kernel_a, dense.lora_kernel_b) * (dense.lora_alpha / dense.lora_rank)
            values[id(kernel)] = ops.add(kernel, ops.cast(update, kernel.dtype))
    merged = type(model).from_config(model.get_config())
    unfreeze(merged)
    for weight, value in zip(merged.weights, values.values(), strict=True):
        # A copy: on JAX two models that share an array lose it, since training and predicting donate it.
        weight.assign(ops.copy(value))
    return merged


def _parts(model):
    parts = parts_of(model)
    if not all(isinstance(block, TransformerBlock) for block in parts.blocks):
        raise ValueError(
            "Expected a ViT of this package's builders, with transformer blocks. "
            f"Received: model {model.name!r} with blocks {', '.join(block.name for block in parts.blocks)}"
        )
    return parts


def _projections(block):
    return block.attention.qkv, block.attention.out, block.mlp.dense_1, block.mlp.dense_2
