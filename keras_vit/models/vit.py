"""The Vision Transformer as a functional Keras model, read top-down: images, patches, tokens, blocks, head."""

import os
from collections.abc import Callable, Iterable, Sequence

import keras

from keras_vit import arguments, layers
from keras_vit.layers import initializers
from keras_vit.models.dtype import with_dtype
from keras_vit.models.named import named_builder
from keras_vit.models.resnet import hybrid_stem, stage_sizes, token_grid, warn_of_dropped_pixels
from keras_vit.variants import decode_variant
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.load import load_checkpoint
from keras_vit.weights.local import local_path
from keras_vit.weights.preprocessing import preprocessing_of

POSITION_EMBEDDINGS = ("learned", "learned2d", "relative", "sincos2d", "none")
POOLINGS = ("token", "gap", "map", None)
DEFAULT_ACTIVATION = "gelu_tanh"
# The resolution that the stored grid of a model of any size is made for, unless its weights say otherwise.
DEFAULT_IMAGE_SIZE = 224


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
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    interpolation: str | None = None,
    crop_fraction: float | None = None,
    class_names: Sequence[str] | None = None,
    dtype: str | keras.DTypePolicy | None = None,
    name: str | None = None,
) -> keras.Model:
    """Builds a Vision Transformer.

    The model is a plain functional `keras.Model` from images, (batch, height, width, in_channels), channels last
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
        mean: Float, or one a channel: the mean of images scaled to [0, 1] that `normalization` carries. None takes
            what the weights were trained with, and the official 0.5 without weights; so in the next three.
        std: Float, or one a channel: the standard deviation, likewise.
        interpolation: String, how images are to be resized for the model, which `normalization` carries: "bilinear",
            "bicubic", "nearest", "lanczos3", "lanczos5" or "area"; "bilinear" without weights.
        crop_fraction: Float in (0, 1], the share of the shorter side that an evaluation's centre crop keeps, likewise;
            1 without weights.
        class_names: Strings, the names of the classes, which `normalization` carries: predictions and exports answer
            with them.
        dtype: The dtype policy of all layers but the heads, which compute in float32: "mixed_bfloat16" as an example;
            None takes Keras' global one.
        name: String, the model's name.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: If an argument is out of its range, or the weights do not fit the model.
        FileNotFoundError: If there is no file at `weights`.

    Example:

    >>> model = keras_vit.ViT("B/16", num_classes=10)
    >>> model.output_shape
    (None, 10)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929).
    """
    size, variant_patch_size, variant_stages = decode_variant(variant)
    stages = variant_stages if stages is None else stage_sizes(stages)
    patch_size = arguments.pair("patch_size", variant_patch_size if patch_size is None else patch_size)
    hidden_dim = arguments.positive_int("hidden_dim", size.hidden_dim if hidden_dim is None else hidden_dim)
    num_layers = arguments.positive_int("num_layers", size.num_layers if num_layers is None else num_layers)
    num_heads = arguments.positive_int("num_heads", size.num_heads if num_heads is None else num_heads)
    mlp_dim = arguments.positive_int("mlp_dim", size.mlp_dim if mlp_dim is None else mlp_dim)
    _check_head_dim(hidden_dim, num_heads, head_dim)
    arguments.one_of("pooling", pooling, POOLINGS)
    arguments.one_of("position_embedding", position_embedding, POSITION_EMBEDDINGS)
    arguments.non_negative_int("num_classes", num_classes)
    arguments.rate("drop_path_rate", drop_path_rate)
    arguments.rate("patch_dropout_rate", patch_dropout_rate)
    if position_embedding == "relative" and patch_dropout_rate:
        raise ValueError(
            'Expected patch_dropout_rate=0 with position_embedding="relative", whose offsets it would break. '
            f"Received: patch_dropout_rate={patch_dropout_rate}"
        )
    token_merging = _one_a_block("token_merging", token_merging, num_layers)
    if position_embedding == "relative" and any(token_merging):
        raise ValueError(
            'Expected token_merging=0 with position_embedding="relative", whose offsets it would break. '
            f"Received: token_merging={token_merging}"
        )
    if skip_unused_tokens:
        if pooling != "token":
            raise ValueError(f'Expected pooling="token" with skip_unused_tokens=True. Received: {pooling=}')
        # What merges behind the last attention is not read.
        token_merging = (*token_merging[:-1], 0)
    if stages is None and width_factor != 1:
        raise ValueError(f"Expected width_factor=1 where there is no ResNet. Received: width_factor={width_factor}")
    image_size = arguments.image_size(image_size)
    any_size = image_size == (None, None)
    if class_token is None:
        class_token = pooling in ("token", None)
    if pooling == "token" and not class_token:
        raise ValueError('Expected a class token with pooling="token". Received: class_token=False')
    if distillation_token and (pooling != "token" or representation_size is not None or norm_after_pooling):
        raise ValueError(
            'Expected pooling="token", no representation_size and norm_after_pooling=False with distillation_token=True'
            f". Received: pooling={pooling!r}, representation_size={representation_size}, {norm_after_pooling=}"
        )
    distillation_head = distillation_token and distillation_head
    if return_both_heads and not (distillation_head and num_classes):
        raise ValueError(
            "Expected distillation_token=True, with its head, and num_classes above 0 with return_both_heads=True. "
            f"Received: {distillation_token=}, {distillation_head=}, {num_classes=}"
        )
    if norm_after_pooling and pooling not in ("token", "gap"):
        raise ValueError(
            f'Expected pooling="token" or "gap" with norm_after_pooling=True. Received: pooling={pooling!r}'
        )
    num_prefix_positions = int(class_token) + int(distillation_token)
    num_prefix_tokens = num_prefix_positions + arguments.non_negative_int("num_registers", num_registers)

    checkpoint = None if weights is None else Checkpoint(local_path(weights, architecture_of(variant)))
    preprocessing = preprocessing_of(
        checkpoint, mean=mean, std=std, interpolation=interpolation, crop_fraction=crop_fraction
    )
    allow = () if activation is None else ("activation",)
    if activation is None:
        activation = (checkpoint and checkpoint.settings["activation"]) or DEFAULT_ACTIVATION
    if position_interpolation is None:
        position_interpolation = checkpoint.position_resize if checkpoint else "linear"
    if not any_size and grid_size is not None:
        raise ValueError(f"Expected grid_size=None with images of a known size. Received: {grid_size=}, {image_size=}")
    if any_size:
        # The grid of the weights is kept as it is: whatever the input's size, it is resized once and not twice.
        grid_size = grid_size or (checkpoint and checkpoint.grid_size)
        grid_size = grid_size or token_grid((DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE), stages, patch_size)
    else:
        grid_size = token_grid(image_size, stages, patch_size)
        warn_of_dropped_pixels(image_size, grid_size, stages, patch_size)

    inputs = keras.Input((*image_size, arguments.positive_int("in_channels", in_channels)), name="images")
    images = layers.ImageNormalization(
        apply=include_preprocessing,
        class_names=arguments.class_names(class_names, num_classes),
        name="normalization",
        **preprocessing,
    )(inputs)
    feature_map = images if stages is None else hybrid_stem(images, stages, width_factor)
    x = layers.PatchEmbedding(hidden_dim, patch_size, name="patch_embedding")(feature_map)
    if num_registers:
        x = layers.PrefixTokens(num_registers, initializer=initializers.RandomNormal(stddev=1e-6), name="registers")(x)
    if distillation_token:
        x = layers.PrefixTokens(1, name="distillation_token")(x)
    if class_token:
        x = layers.ClassToken(name="class_token")(x)
    if position_embedding in layers.position_embedding.METHODS:
        position_layer = layers.PositionEmbedding(
            grid_size,
            method=position_embedding,
            patch_size=patch_size,
            num_prefix_tokens=num_prefix_tokens,
            num_prefix_positions=num_prefix_positions if class_token_position else 0,
            interpolation=position_interpolation,
            name="position_embedding",
        )
        x = position_layer(x, feature_map) if any_size else position_layer(x)
    if dropout_rate:
        x = keras.layers.Dropout(dropout_rate, name="dropout")(x)
    if patch_dropout_rate:
        x = layers.PatchDropout(patch_dropout_rate, num_prefix_tokens=num_prefix_tokens, name="patch_dropout")(x)
    sizes = None
    for i in range(num_layers):
        block = layers.TransformerBlock(
            num_heads,
            mlp_dim,
            dropout_rate=dropout_rate,
            attention_dropout_rate=attention_dropout_rate,
            drop_path_rate=drop_path_rate * i / max(num_layers - 1, 1),
            layer_scale_init=layer_scale_init,
            qk_norm=qk_norm,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            # A single token has one offset, 0; the table has one more then.
            max_relative_distance=max(1, num_prefix_tokens + grid_size[0] * grid_size[1] - 1)
            if position_embedding == "relative"
            else None,
            token_merging=token_merging[i],
            num_prefix_tokens=num_prefix_tokens if token_merging[i] else 0,
            num_outputs=num_prefix_positions if skip_unused_tokens and i == num_layers - 1 else None,
            remat=remat,
            name=f"block_{i:02d}",
        )
        x = block(x) if sizes is None else block(x, sizes)
        if token_merging[i]:
            x, sizes = x
    if not norm_after_pooling:
        x = keras.layers.LayerNormalization(epsilon=layer_norm_epsilon, name="norm")(x)
    tokens = x
    pool = None
    if pooling == "map":
        pool = layers.AttentionPooling(
            num_heads,
            mlp_dim,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            num_prefix_tokens=num_prefix_tokens,
            name="pooling",
        )
    elif pooling is not None:
        pool = layers.TokenPooling(pooling, num_prefix_tokens=num_prefix_tokens, name="pooling")
    if pool is not None:
        x = pool(x) if sizes is None or pooling == "token" else pool(x, sizes)
    if norm_after_pooling:
        x = keras.layers.LayerNormalization(epsilon=layer_norm_epsilon, name="fc_norm")(x)
    # As in the official code, pre_logits is there in any case, and its tanh comes after it.
    if representation_size is None:
        x = keras.layers.Identity(name="pre_logits")(x)
    else:
        x = keras.layers.Dense(
            arguments.positive_int("representation_size", representation_size),
            kernel_initializer=initializers.LecunNormal(),
            name="pre_logits",
        )(x)
        x = keras.layers.Activation("tanh", name="pre_logits_tanh")(x)
    head_options = {"activation": classifier_activation, "kernel_initializer": head_init, "dtype": "float32"}
    if num_classes:
        x = keras.layers.Dense(num_classes, name="head", **head_options)(x)
    if distillation_head:
        y = layers.TokenPooling("token", num_prefix_tokens=num_prefix_tokens, index=1, name="pooling_dist")(tokens)
        if num_classes:
            y = keras.layers.Dense(num_classes, name="head_dist", **head_options)(y)
        x = [x, y] if return_both_heads else keras.layers.Average(dtype=x.dtype, name="mean_of_heads")([x, y])
    model = keras.Model(inputs, x, name=name or "vit_" + variant.replace("/", "").replace("+", "_"))
    if checkpoint is not None:
        load_checkpoint(model, checkpoint, allow=allow).log()
    return model


def _check_head_dim(hidden_dim, num_heads, head_dim):
    width = hidden_dim // num_heads
    # Fewer channels than heads are the layer's to refuse.
    if head_dim is None and width and hidden_dim % num_heads:
        raise ValueError(
            "Expected `num_heads` to divide `hidden_dim`, or `head_dim` to say that the heads are not to be as wide "
            f"together. Received: {hidden_dim=}, {num_heads=}, head_dim=None; pass head_dim={width} if that is meant."
        )
    if head_dim not in (None, width):
        raise ValueError(
            "Invalid value received for argument `head_dim`. Expected hidden_dim // num_heads = "
            f"{hidden_dim} // {num_heads} = {width}. Received: {head_dim!r}"
        )


def _one_a_block(name, value, num_layers):
    """Ints of at least 0, one a block: an int stands for all of them."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    values = tuple(value) if several else (value,) * num_layers
    if len(values) != num_layers:
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected an integer, or one for each of the {num_layers} "
            f"blocks. Received: {value!r}"
        )
    return [arguments.non_negative_int(name, v) for v in values]


def architecture_of(variant):
    """The name under which `list_weights` keeps a variant: "ViTB16" for "B/16", "R50ViTB16" for "R50+B/16"."""
    stem, _, size = variant.rpartition("+")
    return f"{stem}ViT{size}".replace("/", "")


ViTTi16 = named_builder(ViT, "ViTTi16", "Ti/16", __name__)
ViTS16 = named_builder(ViT, "ViTS16", "S/16", __name__)
ViTS32 = named_builder(ViT, "ViTS32", "S/32", __name__)
ViTB8 = named_builder(ViT, "ViTB8", "B/8", __name__)
ViTB16 = named_builder(ViT, "ViTB16", "B/16", __name__)
ViTB32 = named_builder(ViT, "ViTB32", "B/32", __name__)
ViTL16 = named_builder(ViT, "ViTL16", "L/16", __name__)
ViTL32 = named_builder(ViT, "ViTL32", "L/32", __name__)
ViTH14 = named_builder(ViT, "ViTH14", "H/14", __name__)
ViTg14 = named_builder(ViT, "ViTg14", "g/14", __name__)
ViTG14 = named_builder(ViT, "ViTG14", "G/14", __name__)
ViTSO400M14 = named_builder(ViT, "ViTSO400M14", "SO400M/14", __name__)
