"""The builder of any Vision Transformer: arguments and weights make the record, and the record makes the model."""

import logging
import os
from collections.abc import Callable, Sequence

import keras

from keras_vit import arguments
from keras_vit.config import ViTConfig
from keras_vit.model_config import DEFAULT_IMAGE_SIZE
from keras_vit.models.recorded import fields_from, with_dtype
from keras_vit.models.vision_transformer import VisionTransformer, vision_transformer
from keras_vit.preprocessing import Preprocessing
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.load import load_checkpoint
from keras_vit.weights.zoo import local_path

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
            in "B/16", or a hybrid, as in "R50+B/16". The arguments below override its sizes.
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels. A remainder that fills no
            patch is dropped at the right and bottom, with a warning.
        in_channels: Int, the images' channels.
        num_classes: Int, the number of classes; 0 builds no head and returns the features instead.
        weights: Path of a checkpoint to load, as `load_weights` does, or the tag of a published one, as
            "imagenet21k" (see `list_weights`), which is downloaded once; None for random weights. The logger
            "keras_vit" reports what was loaded, as a warning if anything was resized, adapted, left out or is new.
        pooling: "token" (the class token), "gap" (mean of the patches), "map" (attention pooling), or None (all tokens,
            for the head too).
        patch_size: Int, or (height, width), in pixels; of the feature map if there is a ResNet below.
        hidden_dim: Int, the width of a token.
        num_layers: Int, the number of blocks.
        num_heads: Int, the attention heads of a block, each `hidden_dim // num_heads` wide.
        head_dim: Int, that width. Required only if `num_heads` does not divide `hidden_dim`, to confirm it: the paper's
            512 by 6 has head_dim=85.
        mlp_dim: Int, the hidden width of a block's MLP.
        stages: Ints, the number of units of each stage of a ResNet below the patches, which are cut from its feature
            map; () for its root alone. None: as the variant, none but in hybrids.
        width_factor: Float, a multiple of 0.5, the widths of that ResNet relative to a plain one's.
        position_embedding: "learned" (one vector a position), "learned2d" (one a row and one a column), "relative" (in
            each block's attention, by 1-D offset), "sincos2d" (fixed) or "none".
        position_interpolation: How a model of any size resizes its position table at run time: "linear", "bicubic" or
            "bicubic_antialias", as in `PositionEmbedding`. None: that of the weights' own code; "linear" without
            weights.
        grid_size: (rows, columns) of the position table of a model of any size. None: that of the weights; that of
            images of 224 x 224 pixels without weights. A fixed image size determines it.
        class_token: Bool, whether there is a class token; by default if `pooling` is "token" or None.
        class_token_position: Bool, whether the class and distillation tokens get a position embedding too.
        distillation_token: Bool, whether there is DeiT's distillation token after the class token, with its own head,
            `head_dist`. The output is the mean of the two heads' logits.
        distillation_head: Bool; False omits that head, and the output is the class token's.
        return_both_heads: Bool; True returns [logits of the class token, logits of the distillation token] instead.
        num_registers: Int, the number of register tokens, which get no position embedding.
        norm_after_pooling: Bool; True normalises the pooled vector, by a layer `fc_norm`, instead of all tokens.
        representation_size: Int or None: the width of a dense tanh layer before the head.
        dropout_rate: Float in [0, 1), after the position embeddings, the attention and each layer of the MLP.
        attention_dropout_rate: Float in [0, 1), on the attention weights.
        drop_path_rate: Float in [0, 1), stochastic depth: of the last block, rising linearly from 0 at the first.
        patch_dropout_rate: Float in [0, 1), the share of the patches that each training step leaves out.
        token_merging: Int, how many patches each block merges with those most like them, or one int for each block; at
            most half of the patches. Usual: 8 or 16 of 196 patches. Fewer tokens are less work with the same weights.
            Such a block outputs [tokens, sizes], the number of patches of each token, by which "gap" and "map" pooling
            weight them.
        skip_unused_tokens: Bool; True makes the last block compute only the tokens that the head reads, the class and
            distillation token, with the same logits and gradients; 12 blocks are a sixteenth less work. That block and
            `norm` then output these tokens, and it merges none. For `pooling="token"`.
        remat: Bool; True recomputes each block's activations for the gradient: less memory and a third more time in
            training.
        layer_scale_init: Float or None: the initial value of the scale of each residual branch.
        qk_norm: Bool, whether queries and keys are layer-normalised.
        activation: "gelu_tanh", "gelu" (exact) or any Keras activation. None: that of the weights; "gelu_tanh", the
            official one, if they do not say or without weights.
        layer_norm_epsilon: Float, the epsilon of all norms.
        classifier_activation: Activation of the head; None for logits.
        head_init: Initializer of the head's kernel; zeros, as in the official Flax code, by default.
        include_preprocessing: Bool. True makes the model take raw images of 0..255; False takes images as
            `preprocess_input` returns them.
        preprocessing: The `keras_vit.Preprocessing` of its images, which `normalization` carries. None: that of the
            weights; the official one without weights. Constants of another number of channels are averaged. The next
            four change it.
        mean: As in `keras_vit.Preprocessing`, as are std, interpolation and crop_fraction.
        std: See mean.
        interpolation: See mean.
        crop_fraction: See mean.
        class_names: Strings, the names of the classes, which `normalization` carries for predictions and exports.
        dtype: The dtype policy of all layers, such as "mixed_bfloat16", but the heads, which compute in float32; None
            for Keras' global one.
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
    given = dict(locals())
    arguments.class_names(class_names, num_classes)
    checkpoint = None if weights is None else Checkpoint(local_path(weights, architecture_of(variant)))
    # None, all tokens, is a value of pooling.
    fields = {**fields_from(ViTConfig, given, checkpoint), "pooling": pooling}
    if checkpoint is not None:
        fields.setdefault("activation", checkpoint.settings["activation"] or ViTConfig.activation)
        if arguments.image_size(image_size) == (None, None):
            fields.setdefault("position_interpolation", checkpoint.position_interpolation)
            # The grid of the weights is kept, so that it is resized once and not twice.
            fields.setdefault("grid_size", checkpoint.grid_size)
    config = ViTConfig.from_variant(variant, **fields)
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
    """Warns of pixels that fill no patch."""
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
