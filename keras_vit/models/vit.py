"""The builder of any Vision Transformer: arguments and weights make the record, and the record makes the model."""

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence

import keras

from keras_vit import arguments
from keras_vit.config import ViTConfig
from keras_vit.model_config import DEFAULT_IMAGE_SIZE
from keras_vit.models.dtype import with_dtype
from keras_vit.models.vision_transformer import VisionTransformer, vision_transformer
from keras_vit.preprocessing import Preprocessing
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.load import load_checkpoint
from keras_vit.weights.preprocessing import preprocessing_of
from keras_vit.weights.zoo import local_path

logger = logging.getLogger("keras_vit")
# The arguments of `ViT` that are fields of its record.
FIELDS = [field.name for field in dataclasses.fields(ViTConfig)]


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
    position_embedding: str = "learned",
    position_interpolation: str | None = None,
    grid_size: tuple[int, int] | None = None,
    class_token: bool | None = None,
    class_token_position: bool = True,
    distillation_token: bool = False,
    distillation_head: bool = True,
    return_both_heads: bool = False,
    num_registers: int = 0,
    norm_after_pooling: bool = False,
    representation_size: int | None = None,
    dropout_rate: float = 0.0,
    attention_dropout_rate: float = 0.0,
    drop_path_rate: float = 0.0,
    patch_dropout_rate: float = 0.0,
    token_merging: int | Sequence[int] = 0,
    skip_unused_tokens: bool = False,
    remat: bool = False,
    layer_scale_init: float | None = None,
    qk_norm: bool = False,
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
    dtype: str | keras.DTypePolicy | None = None,
    name: str | None = None,
) -> VisionTransformer:
    """Builds a Vision Transformer.

    The model is a flat functional `keras.Model` from images, (batch, height, width, in_channels), channels last
    whatever `keras.config.image_data_format()` says, to logits, (batch, num_classes), in float32 under any dtype
    policy. Its layers are named `normalization`, `patch_embedding`, `class_token`, `position_embedding`, `block_00`,
    `block_01`, ..., `norm`, `pre_logits` and `head`, so that any of them can be tapped: `keras.Model(m.input,
    m.get_layer("block_07").output)`.

    Args:
        variant: String: a size ("Ti", "S", "B", "L", "H", "g", "G", "SO400M"), a slash and a patch size in pixels, as
            in "B/16", or a hybrid, as in "R50+B/16". Each of its sizes can be overridden by the arguments below.
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels. Where patches do not
            divide it, the remainder is dropped at the right and bottom, and a warning says so.
        in_channels: Int, the images' channels.
        num_classes: Int, the number of classes; 0 builds no head and gives the features instead.
        weights: Path of a checkpoint to load, as `load_weights` does, or the tag of a published one, as
            "imagenet21k" (see `list_weights`), which is downloaded once; None for random weights. What was loaded is
            told by the logger "keras_vit": as a warning where anything was resized, adapted, left out or is new.
        pooling: "token" (the class token), "gap" (mean of the patches), "map" (attention pooling), or None (all tokens,
            for the head too).
        patch_size: Int, or (height, width), in pixels; of the feature map where there is a ResNet below.
        hidden_dim: Int, the width of a token.
        num_layers: Int, the number of blocks.
        num_heads: Int, the attention heads of a block, each `hidden_dim // num_heads` wide.
        head_dim: Int, that width. It is only needed where `num_heads` does not divide `hidden_dim`, to say that this is
            meant: the paper's 512 by 6 has head_dim=85.
        mlp_dim: Int, the hidden width of a block's MLP.
        stages: Ints, the number of units of each stage of a ResNet below the patches, which are then cut out of its
            feature map; () for its root alone. By default as the variant says: none but in hybrids.
        width_factor: Float, a multiple of 0.5, the widths of that ResNet relative to a plain one's.
        position_embedding: "learned" (one vector a position), "learned2d" (one a row and one a column), "relative" (in
            each block's attention, by 1-D offset), "sincos2d" (fixed) or "none".
        position_interpolation: How a model of any size resizes its table of positions at run time: "linear", "bicubic"
            or "bicubic_antialias", as in `PositionEmbedding`. None takes the way of the weights' own code, and "linear"
            without weights.
        grid_size: (rows, columns) of that table in a model of any size. None takes the weights' own, and that of images
            of 224 x 224 pixels without weights. Of a fixed size the images tell it.
        class_token: Bool, whether there is a class token; by default where `pooling` is "token" or None.
        class_token_position: Bool, whether the class and distillation tokens get a position embedding too.
        distillation_token: Bool, whether DeiT's distillation token stands behind the class token, with a head
            `head_dist` of its own. The output is the mean of the two heads' logits.
        distillation_head: Bool; False builds no such head, and the class token's is the output.
        return_both_heads: Bool; True gives [logits of the class token, logits of the distillation token] instead.
        num_registers: Int, the number of register tokens, which get no position embedding.
        norm_after_pooling: Bool; True normalises the pooled vector, by a layer `fc_norm`, instead of all tokens.
        representation_size: Int or None: the width of a dense tanh layer before the head.
        dropout_rate: Float in [0, 1), after the position embeddings, the attention and each layer of the MLP.
        attention_dropout_rate: Float in [0, 1), on the attention weights.
        drop_path_rate: Float in [0, 1), stochastic depth: of the last block, rising linearly from 0 at the first.
        patch_dropout_rate: Float in [0, 1), the share of the patches that each training step leaves out.
        token_merging: Int, how many patches each block merges with those most like them, or a sequence of one int a
            block; a block merges at most half of the patches that reach it. Fewer tokens are less work, with the same
            weights: 8 or 16 are usual for 196 patches. The output of a block that merges is [tokens, sizes], how many
            patches each token stands for; "gap" and "map" pooling count a token as often.
        skip_unused_tokens: Bool; True makes the last block compute those tokens alone that the head reads, the class
            token and DeiT's distillation token. Logits and gradients stay the same, and a model of 12 blocks has a
            sixteenth less work; but the outputs of that block, and of `norm`, are those tokens, and it merges none.
            For `pooling="token"`.
        remat: Bool; True recomputes each block's activations for the gradient, which takes less memory and a third more
            time in training, and changes nothing else.
        layer_scale_init: Float or None: the initial value of the scale of each residual branch.
        qk_norm: Bool, whether queries and keys are layer-normalised.
        activation: "gelu_tanh", "gelu" (exact) or any Keras activation. None takes the one that the weights were
            trained with, and "gelu_tanh", the official one, without weights or where they do not tell.
        layer_norm_epsilon: Float, the epsilon of all norms.
        classifier_activation: Activation of the head; None gives logits.
        head_init: Initializer of the head's kernel; zeros, as in the official Flax code, by default.
        include_preprocessing: Bool. True makes the model take raw images of 0..255; False takes images as
            `preprocess_input` returns them.
        preprocessing: The `keras_vit.Preprocessing` of its images, which `normalization` carries. None takes what the
            weights were trained with, and the official one without weights; where it has constants for another number
            of channels, their mean. The next four change it.
        mean: Float, or one a channel: the mean of images scaled to the `value_range` of that record, usually [0, 1].
        std: Float, or one a channel: the standard deviation, likewise.
        interpolation: String, how images are to be resized for the model: "bilinear", "bicubic", "nearest", "lanczos3",
            "lanczos5" or "area".
        crop_fraction: Float in (0, 1], the share of the shorter side that an evaluation's centre crop keeps.
        class_names: Strings, the names of the classes, which `normalization` carries: predictions and exports answer
            with them.
        dtype: The dtype policy of all layers but the heads, which compute in float32: "mixed_bfloat16" as an example;
            None takes Keras' global one.
        name: String, the model's name.

    Returns:
        A `keras_vit.models.VisionTransformer`, whose `config` is its record.

    Raises:
        ValueError: If an argument is out of its range, or the weights do not fit the model.
        FileNotFoundError: If there is no file at `weights`.

    Example:

    >>> model = keras_vit.ViT("B/16", num_classes=10)
    >>> model.output_shape
    (None, 10)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929).
    """
    arguments.class_names(class_names, num_classes)
    given = {name: value for name, value in locals().items() if name in FIELDS and value is not None}
    # None, all tokens, is a value of this one.
    given["pooling"] = pooling
    checkpoint = None if weights is None else Checkpoint(local_path(weights, architecture_of(variant)))
    given["preprocessing"] = preprocessing_of(
        checkpoint,
        preprocessing,
        in_channels,
        mean=mean,
        std=std,
        interpolation=interpolation,
        crop_fraction=crop_fraction,
    )
    if checkpoint is not None:
        given.setdefault("activation", checkpoint.settings["activation"] or ViTConfig.activation)
        if arguments.image_size(image_size) == (None, None):
            given.setdefault("position_interpolation", checkpoint.position_interpolation)
            # The grid of the weights is kept as it is: whatever the input's size, it is resized once and not twice.
            given.setdefault("grid_size", checkpoint.grid_size)
    config = ViTConfig.from_variant(variant, **given)
    _warn_of_dropped_pixels(config)
    model = vision_transformer(
        config,
        include_preprocessing=include_preprocessing,
        head_init=head_init,
        dropout_rate=dropout_rate,
        attention_dropout_rate=attention_dropout_rate,
        drop_path_rate=drop_path_rate,
        patch_dropout_rate=patch_dropout_rate,
        token_merging=token_merging,
        skip_unused_tokens=skip_unused_tokens,
        remat=remat,
        name=name or "vit_" + variant.replace("/", "").replace("+", "_"),
    )
    if checkpoint is not None:
        load_checkpoint(model, checkpoint, allow=() if activation is None else ("activation",)).log()
    return model


def _warn_of_dropped_pixels(config):
    """Says which pixels the patches of a record leave over."""
    if config.any_size:
        return
    used = [n * patch * config.stride for n, patch in zip(config.grid, config.patch_size, strict=True)]
    if any(pixels < side for pixels, side in zip(used, config.image_size, strict=True)):
        logger.warning(
            "Patches of %d x %d pixels do not divide images of %d x %d: the model sees the upper left %d x %d.",
            *(patch * config.stride for patch in config.patch_size),
            *config.image_size,
            *map(min, used, config.image_size),
        )


def architecture_of(variant):
    """The name under which `list_weights` keeps a variant: "ViTB16" for "B/16", "R50ViTB16" for "R50+B/16"."""
    stem, _, size = variant.rpartition("+")
    return f"{stem}ViT{size}".replace("/", "")
