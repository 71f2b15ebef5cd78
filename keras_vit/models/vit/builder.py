"""Builds Vision Transformers from a variant, arguments and weights."""

import logging
import os
import re
from collections.abc import Callable, Sequence

import keras

from keras_vit import arguments
from keras_vit.config import DEFAULT_IMAGE_SIZE, Preprocessing
from keras_vit.models.checkpoint import Checkpoint
from keras_vit.models.family import fields_from, given_settings, with_dtype
from keras_vit.models.loading import load_checkpoint
from keras_vit.models.vit.config import ViTConfig
from keras_vit.models.vit.model import VisionTransformer, vision_transformer
from keras_vit.models.zoo import find, local_path

logger = logging.getLogger("keras_vit")


@with_dtype
def ViT(
    variant: str,
    *,
    image_size: int | tuple[int, int] | tuple[None, None] = DEFAULT_IMAGE_SIZE,
    in_channels: int = 3,
    num_classes: int = 1000,
    weights: str | os.PathLike | None = None,
    pooling: str | None = "token",
    patch_size: int | tuple[int, int] | None = None,
    hidden_dim: int | None = None,
    num_layers: int | None = None,
    num_heads: int | None = None,
    head_dim: int | None = None,
    mlp_dim: int | None = None,
    stages: Sequence[int] | None = None,
    width_factor: float = 1.0,
    resnet_epsilons: str | None = None,
    position_embedding: str = "learned",
    position_interpolation: str | None = None,
    grid_size: tuple[int, int] | None = None,
    class_token: bool | None = None,
    class_token_position: bool = True,
    distillation_token: bool = False,
    distillation_head: bool = True,
    return_both_heads: bool = False,
    num_registers: int = 0,
    rotary_embedding: str | None = None,
    rotary_grid: tuple[int, int] | None = None,
    patch_bias: bool = True,
    norm_before_blocks: bool = False,
    norm_after_pooling: bool = False,
    projection_dim: int | None = None,
    representation_size: int | None = None,
    dropout_rate: float = 0.0,
    attention_dropout_rate: float = 0.0,
    drop_path_rate: float = 0.0,
    patch_dropout_rate: float = 0.0,
    token_merging: int | Sequence[int] = 0,
    remat: bool = False,
    layer_scale_init: float | None = None,
    qk_norm: bool = False,
    qkv_bias: bool = True,
    key_bias: bool = True,
    attention_norm: bool = False,
    gated_mlp: bool | None = None,
    mlp_norm: bool = False,
    activation: str | Callable | None = None,
    layer_norm_epsilon: float = 1e-6,
    classifier_activation: str | Callable | None = None,
    head_init: str | keras.initializers.Initializer = "zeros",
    include_preprocessing: bool = False,
    preprocessing: Preprocessing | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    interpolation: str | None = None,
    crop_fraction: float | None = None,
    class_names: Sequence[str] | None = None,
    multi_label: bool = False,
    regression: bool = False,
    dtype: str | keras.DTypePolicy | None = None,
    name: str | None = None,
) -> VisionTransformer:
    """Builds a Vision Transformer, a functional `keras_vit.models.VisionTransformer`.

    The model maps images, (batch, height, width, in_channels), always channels last, to float32 logits, (batch,
    num_classes). Layers are named `normalization`, `patch_embedding`, `class_token`, `position_embedding`, `block_00`,
    `block_01`, ..., `norm`, `pre_logits` and `head`.

    Args:
        variant: Size (a row of `keras_vit.models.vit.config.SIZES`: "Ti", "S", "B", "L", "H", "g", "G", "SO400M", ...),
            slash, patch size in pixels, such as "B/16", or a hybrid such as "R50+B/16". The size arguments below
            override it.
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels. Pixels at the right and
            bottom that do not fill a patch are dropped, with a warning.
        in_channels: Int, the number of image channels.
        num_classes: Int, the number of classes; 0 for features without a head.
        weights: Path or hub's name of a checkpoint (see `load_weights`), or tag of a published one to download, such
            as "imagenet21k" (see `list_weights`); None for random weights. The logger "keras_vit" reports what was
            loaded.
        pooling: "token" (class token), "gap" (mean of the patches), "token_gap" (both, concatenated), "map" (attention
            pooling) or None (all tokens).
        patch_size: Int, or (height, width), in pixels; for hybrids, in pixels of the feature map.
        hidden_dim: Int, the width of a token.
        num_layers: Int, the number of blocks.
        num_heads: Int, the attention heads per block.
        head_dim: Int, the head width, `hidden_dim // num_heads`. Required if `num_heads` does not divide `hidden_dim`.
        mlp_dim: Int, the hidden width of the MLPs.
        stages: Ints, the units per stage of a hybrid's ResNet; () for its root only. None: as in the variant.
        width_factor: Float, a multiple of 0.5, the width of that ResNet relative to the standard.
        resnet_epsilons: The epsilons of its convolutions and norms: "official" or "timm". None: as in the weights, else
            "official".
        position_embedding: "learned" (per position), "learned2d" (per row and per column), "relative" (per 1-D offset,
            in each attention), "sincos2d" (fixed) or "none".
        position_interpolation: How a model of any image size resizes its position table: "linear", "bicubic",
            "bicubic_antialias" or "bicubic_offset", as in `PositionEmbedding`. None: as in the weights' code;
            "linear" without weights.
        grid_size: (rows, columns) of the position table of a model of any image size. None: as in the weights; that of
            224 x 224 images without weights.
        class_token: Bool, whether there is a class token; None: only if `pooling` is "token", "token_gap" or None.
        class_token_position: Bool, whether class and distillation tokens get a position embedding.
        distillation_token: Bool, whether to add DeiT's distillation token and its head, `head_dist`. The output is the
            mean of both heads' logits.
        distillation_head: Bool; False omits that head.
        return_both_heads: Bool; True returns [class token logits, distillation token logits] instead of the mean.
        num_registers: Int, the number of register tokens, without position embeddings.
        rotary_embedding: "dinov3", "eva02" or "axial" (RoPE-ViT), as in `RotaryEmbedding`, beside any
            `position_embedding`; None for none.
        rotary_grid: (rows, columns) that rotary positions of other grids are scaled to, as in EVA-02; None for none.
        patch_bias: Bool, whether the patch embedding has a bias.
        norm_before_blocks: Bool, whether to normalize the tokens before the first block, as in CLIP.
        norm_after_pooling: Bool; True normalizes the pooled vector (layer `fc_norm`) instead of all tokens.
        projection_dim: Int, the width of a dense layer without bias after the pooling, as in CLIP; None for none.
        representation_size: Int, the width of a dense tanh layer before the head; None for no such layer.
        dropout_rate: Float in [0, 1), after the position embeddings, the attention and each layer of the MLP.
        attention_dropout_rate: Float in [0, 1), on the attention weights.
        drop_path_rate: Float in [0, 1), the stochastic depth of the last block, rising linearly from 0 at the first.
        patch_dropout_rate: Float in [0, 1), the share of patches that each training step drops.
        token_merging: Int, or one per block, the number of patches to merge into similar ones, at most half of them.
            Usual: 8 or 16 of 196. Such a block outputs tokens and their sizes.
        remat: Bool; True recomputes each block's activations for the gradient: less memory, a third more training time.
        layer_scale_init: Float, the initial value of LayerScale; None for no LayerScale.
        qk_norm: Bool, whether to layer-normalize queries and keys.
        qkv_bias: Bool, whether queries, keys and values have a bias.
        key_bias: Bool, whether the keys have one of these biases.
        attention_norm: Bool, whether to normalize the concatenated heads before their output projection.
        gated_mlp: Bool, whether the MLPs' hidden layer is gated: SwiGLU with activation="silu". None: as in the
            variant.
        mlp_norm: Bool, whether to normalize the MLPs' hidden layer.
        activation: "gelu_tanh", "gelu" (exact), "quick_gelu" (OpenAI's CLIP) or any Keras activation. None: as in the
            weights, else "gelu_tanh".
        layer_norm_epsilon: Float, the epsilon of all norms.
        classifier_activation: Activation of the head; None for logits.
        head_init: Initializer of the head's kernel; zeros, as in the official Flax code, by default.
        include_preprocessing: Bool. True for a model of raw images in 0..255; False for images from `preprocess_input`.
        preprocessing: A `keras_vit.Preprocessing`. None: as in the weights, else the official one. Constants for
            another number of channels are averaged.
        mean, std, interpolation, crop_fraction: Override fields of `preprocessing`.
        class_names: Strings, the names of the classes for predictions and exports.
        multi_label: Bool, whether an image may have any number of classes. Predictions and exports then apply a sigmoid
            to the logits instead of a softmax.
        regression: Bool, whether the outputs are numbers to predict instead of classes; nothing is applied to them.
        dtype: The dtype policy of all layers but the heads, such as "mixed_bfloat16"; None for Keras' global policy.
        name: String, the model's name.

    Raises:
        ValueError: If an argument is out of range, or the weights do not fit the model.
        FileNotFoundError: If `weights` does not exist.

    Example:

    >>> model = keras_vit.ViT("B/16", num_classes=10)
    >>> model.output_shape
    (None, 10)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929).
    """
    given = dict(locals())
    arguments.class_names(class_names, num_classes)
    checkpoint = None if weights is None else Checkpoint(local_path(weights, architecture_of(variant)))
    published = find(f"{architecture_of(variant)}.{weights}")
    if published is not None and preprocessing is None:
        # Files of several recipes do not tell theirs.
        given["preprocessing"] = published.preprocessing
    # None is a value of `pooling`: all tokens.
    fields = fields_from(ViT, ViTConfig, given, checkpoint, "activation", "resnet_epsilons")
    if checkpoint is not None and arguments.image_size(image_size) == (None, None):
        fields.setdefault("position_interpolation", checkpoint.position_interpolation)
        # Keeps the weights' grid, so that it is resized only once.
        fields.setdefault("grid_size", checkpoint.grid_size)
    config = ViTConfig.from_variant(variant, **fields)
    _warn_of_dropped_pixels(config)
    given["name"] = name or "vit_" + variant.replace("/", "").replace("+", "_")
    model = vision_transformer(config, **{name: given[name] for name in vision_transformer.__kwdefaults__})
    if checkpoint is not None:
        load_checkpoint(model, checkpoint, allow=given_settings(given)).log()
    return model


def _warn_of_dropped_pixels(config):
    """Warns if patches do not divide the image size."""
    if config.any_size:
        return
    (height, width), (rows, columns) = config.image_size, config.grid
    ph, pw = (patch * config.stride for patch in config.patch_size)
    if rows * ph < height or columns * pw < width:
        seen = f"the model sees the upper left {min(rows * ph, height)} x {min(columns * pw, width)}"
        logger.warning(f"Patches of {ph} x {pw} pixels do not divide images of {height} x {width}: {seen}.")


def architecture_of(variant):
    """The name of a variant in `list_weights`: "ViTB16" for "B/16", "R50ViTB16" for "R50+B/16"."""
    return re.sub(r"^(?:(\w+)\+)?(?=\w)", r"\1ViT", str(variant), count=1).replace("/", "")
