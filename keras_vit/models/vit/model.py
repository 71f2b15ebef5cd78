"""Vision Transformers and hybrids: the functional graph, and the builder `ViT`."""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import keras

from keras_vit import arguments, layers
from keras_vit.config import Preprocessing
from keras_vit.layers import initializers
from keras_vit.layers.class_token import PrefixTokens
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.rotary_embedding import KINDS as ROTARY_KINDS
from keras_vit.models.bit.model import hybrid_stem
from keras_vit.models.family import Family, FamilyModel, build, dense_head, pre_logits
from keras_vit.models.vit import checkpoint, timm_folder, transformers_folder
from keras_vit.models.vit.config import ViTConfig, ViTFields
from keras_vit.models.vit.names.huggingface import HUGGINGFACE
from keras_vit.models.vit.names.official import BIG_VISION, OFFICIAL
from keras_vit.models.vit.names.original import recognise
from keras_vit.models.vit.names.timm import TIMM

logger = logging.getLogger("keras_vit")
# The fields of a config that are arguments of each block.
_BLOCK_FIELDS = (
    *("num_heads", "mlp_dim", "activation", "layer_norm_epsilon", "layer_scale_init", "qk_norm", "qkv_bias"),
    *("key_bias", "attention_norm", "gated_mlp", "mlp_norm"),
)


def ViT(
    variant: str,
    *,
    weights: str | os.PathLike | None = None,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | tuple[None, None] | None = None,
    in_channels: int | None = None,
    pooling: str | None = None,
    task: str | None = None,
    class_names: Sequence[str] | None = None,
    preprocessing: Preprocessing | dict[str, Any] | None = None,
    include_preprocessing: bool | None = None,
    classifier_activation: str | Callable | None = None,
    dropout_rate: float = 0.0,
    attention_dropout_rate: float = 0.0,
    drop_path_rate: float = 0.0,
    patch_dropout_rate: float = 0.0,
    token_merging: int | Sequence[int] | None = None,
    remat: bool = False,
    head_init: str | keras.initializers.Initializer = "zeros",
    dtype: str | keras.DTypePolicy | None = None,
    name: str | None = None,
    **fields: Unpack[ViTFields],
) -> FamilyModel:
    """Builds a Vision Transformer, a functional `keras_vit.models.FamilyModel`.

    The model maps images of shape (batch, height, width, in_channels), always channels last, to float32 logits of shape
    (batch, num_classes). Layers are named `normalization`, `patch_embedding`, `class_token`, `position_embedding`,
    `block_00`, `block_01`, ..., `norm`, `pre_logits` and `head`. If an argument is None, its value comes from the
    weights or, without weights, from the variant. Variants have 1000 classes, images of 224 x 224 pixels with 3
    channels, and pooling="token".

    Args:
        variant: A size (a row of `keras_vit.models.vit.variants.SIZES`: "Ti", "S", "B", "L", "H", "g", "G", ...), a
            slash and a patch size in pixels, such as "B/16"; or a hybrid such as "R50+B/16".
        weights: Path of a checkpoint, or model name on a hub (see `load_weights`), or tag of a published checkpoint to
            download, such as "imagenet21k" (see `list_weights`); None for random weights. The logger "keras_vit"
            reports what was loaded.
        num_classes, image_size, in_channels, pooling, task: As in `keras_vit.ViTConfig`.
        class_names, preprocessing, include_preprocessing, classifier_activation, token_merging: As in `ViTConfig`, too.
        dropout_rate: Float in [0, 1), the dropout after the position embeddings, the attention and each MLP layer.
        attention_dropout_rate: Float in [0, 1), the dropout of the attention weights.
        drop_path_rate: Float in [0, 1), the stochastic-depth rate of the last block. The rates rise linearly from 0 in
            the first block.
        patch_dropout_rate: Float in [0, 1), the share of patches that each training step drops.
        remat: Bool; True recomputes each block's activations for the gradient. Training then needs less memory, but
            takes a third more time.
        head_init: Initializer of the head's kernel. The default is zeros, as in the official Flax code.
        dtype: The dtype policy of all layers but the heads, such as "mixed_bfloat16"; None for Keras' global policy.
        name: String, the model's name.
        **fields: Other fields of `keras_vit.ViTConfig`, such as `num_layers` or `activation`, which override the
            variant and the weights.

    Raises:
        ValueError: If an argument is unknown or out of range, or the weights do not fit the model.
        FileNotFoundError: If `weights` does not exist.

    Example:

    >>> model = keras_vit.ViT("B/16", num_classes=10)
    >>> model.output_shape
    (None, 10)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929).
    """
    given = {name: value for name, value in locals().items() if name != "variant"}
    return build(VIT, variant, given)


def connect(
    images,
    config,
    *,
    head_init="zeros",
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    drop_path_rate=0.0,
    patch_dropout_rate=0.0,
    remat=False,
):
    """Adds the layers of a `ViTConfig` to a functional graph; returns the outputs."""
    if config.has_positions_in_blocks and patch_dropout_rate:
        raise ValueError(
            "Expected patch_dropout_rate=0 with relative or rotary positions, which need all patches. Received: "
            f"patch_dropout_rate={patch_dropout_rate}"
        )
    arguments.boolean("remat", remat)
    _warn_of_dropped_pixels(config)
    num_prefix_tokens, merged = config.num_prefix_tokens, config.merged_per_block

    feature_map = images if config.stages is None else hybrid_stem(images, config)
    x = layers.PatchEmbedding(config.hidden_dim, config.patch_size, use_bias=config.patch_bias, name="patch_embedding")(
        feature_map
    )
    if config.num_registers:
        stddev = initializers.RandomNormal(stddev=1e-6)
        x = PrefixTokens(config.num_registers, initializer=stddev, name="registers")(x)
    if config.distillation_token:
        x = PrefixTokens(1, name="distillation_token")(x)
    if config.class_token:
        x = layers.ClassToken(name="class_token")(x)
    if config.position_embedding in layers.position_embedding.METHODS:
        position_layer = layers.PositionEmbedding(
            config.grid,
            method=config.position_embedding,
            patch_size=config.patch_size,
            num_prefix_tokens=num_prefix_tokens,
            num_prefix_positions=config.num_positioned_tokens if config.class_token_position else 0,
            interpolation=config.position_interpolation,
            name="position_embedding",
        )
        x = position_layer(x, feature_map) if config.any_size else position_layer(x)
    if dropout_rate:
        x = keras.layers.Dropout(dropout_rate, name="dropout")(x)
    rotary = None
    if config.rotary_embedding is not None:
        width = config.head_dim or config.hidden_dim // config.num_heads
        options = config.rotary_embedding, width, config.patch_size, config.rotary_grid
        rotary = layers.RotaryEmbedding(*options, name="rotary_embedding")(feature_map)
    if config.norm_before_blocks:
        x = LayerNorm(epsilon=config.layer_norm_epsilon, name="norm_before_blocks")(x)
    if patch_dropout_rate:
        x = layers.PatchDropout(patch_dropout_rate, num_prefix_tokens=num_prefix_tokens, name="patch_dropout")(x)
    sizes = None
    # `TransformerBlock` requires a distance of at least 1, even for a single token.
    max_distance = max(1, num_prefix_tokens + arguments.num_patches(config.grid) - 1)
    options = {name: getattr(config, name) for name in _BLOCK_FIELDS}
    options |= {"dropout_rate": dropout_rate, "attention_dropout_rate": attention_dropout_rate, "remat": remat}
    if config.position_embedding == "relative":
        options["max_relative_distance"] = max_distance
    if rotary is not None:
        options["rotary_layout"] = ROTARY_KINDS[config.rotary_embedding].layout
    for i in range(config.num_layers):
        block = layers.TransformerBlock(
            drop_path_rate=drop_path_rate * i / max(config.num_layers - 1, 1),
            token_merging=merged[i],
            num_prefix_tokens=num_prefix_tokens if merged[i] else 0,
            name=f"block_{i:02d}",
            **options,
        )
        given = {"sizes": sizes, "rotary": rotary}
        x = block(x, **{name: value for name, value in given.items() if value is not None})
        if merged[i]:
            x, sizes = x
    if not config.norm_after_pooling:
        x = LayerNorm(epsilon=config.layer_norm_epsilon, name="norm")(x)
    return _head(config, x, sizes, head_init)


def _head(config, tokens, sizes, head_init):
    """Adds the pooling and the heads; returns logits, or features if `num_classes` is 0."""
    x, pool = tokens, None
    if config.pooling == "map":
        pool = layers.AttentionPooling(
            config.num_heads,
            config.mlp_dim,
            activation=config.activation,
            layer_norm_epsilon=config.layer_norm_epsilon,
            num_prefix_tokens=config.num_prefix_tokens,
            name="pooling",
        )
    elif config.pooling != "none":
        pool = layers.TokenPooling(config.pooling, num_prefix_tokens=config.num_prefix_tokens, name="pooling")
    if pool is not None:
        x = pool(x) if sizes is None or config.pooling == "token" else pool(x, sizes)
    if config.norm_after_pooling:
        x = LayerNorm(epsilon=config.layer_norm_epsilon, name="fc_norm")(x)
    if config.projection_dim is not None:
        init = initializers.LecunNormal()
        x = keras.layers.Dense(config.projection_dim, use_bias=False, kernel_initializer=init, name="projection")(x)
    x = dense_head(pre_logits(x, config), config, head_init)
    if not config.has_distillation_head:
        return x
    if isinstance(head_init, keras.initializers.Initializer):
        # An initializer without a seed returns the same numbers at every call, so use a copy for the second head.
        head_init = head_init.clone()
    pool = layers.TokenPooling("token", num_prefix_tokens=config.num_prefix_tokens, index=1, name="pooling_dist")
    y = dense_head(pool(tokens), config, head_init, "head_dist")
    return [x, y] if config.return_both_heads else keras.layers.Average(dtype=x.dtype, name="mean_of_heads")([x, y])


VIT = Family(
    config=ViTConfig,
    connect=connect,
    builder="ViT",
    above=("norm", "pooling", "pooling_dist", "fc_norm", "projection", "pre_logits", "pre_logits_tanh"),
    sources=tuple(checkpoint.READERS),
    read_config=checkpoint.read_config,
    recognise=recognise,
    settings=(
        *("activation", "layer_norm_epsilon", "pooling", "position_embedding", "rotary_embedding", "rotary_grid"),
        *("key_bias", "resnet_epsilons"),
    ),
    fit=checkpoint.fit,
    formats={"npz": OFFICIAL, "big_vision": BIG_VISION, "timm": TIMM, "huggingface": HUGGINGFACE},
    timm=timm_folder.timm_architecture,
    transformers=transformers_folder.transformers_folder,
)


def _warn_of_dropped_pixels(config):
    """Warns if the patches do not cover the whole image."""
    if config.any_size:
        return
    (height, width), (rows, columns) = config.image_size, config.grid
    ph, pw = (patch * config.stride for patch in config.patch_size)
    if rows * ph < height or columns * pw < width:
        seen = f"the model sees the upper left {min(rows * ph, height)} x {min(columns * pw, width)}"
        logger.warning(f"Patches of {ph} x {pw} pixels do not divide images of {height} x {width}: {seen}.")
