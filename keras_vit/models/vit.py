"""The Vision Transformer as a functional Keras model, read top-down: images, patches, tokens, blocks, head."""

import inspect
import logging
import os
from collections.abc import Callable, Sequence

import keras

from keras_vit import layers
from keras_vit.layers import arguments
from keras_vit.models.variants import decode_variant
from keras_vit.weights.load import inspect_file, load_weights

POSITION_EMBEDDINGS = ("learned", "learned2d", "relative", "sincos2d", "none")
POOLINGS = ("token", "gap", "map", None)
DEFAULT_ACTIVATION = "gelu_tanh"
# The resolution that the stored grid of a model of any size is made for, unless its weights say otherwise.
DEFAULT_IMAGE_SIZE = 224

logger = logging.getLogger("keras_vit")


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
    mlp_dim: int | None = None,
    position_embedding: str = "learned",
    class_token: bool | None = None,
    num_registers: int = 0,
    representation_size: int | None = None,
    dropout_rate: float = 0.0,
    attention_dropout_rate: float = 0.0,
    drop_path_rate: float = 0.0,
    patch_dropout_rate: float = 0.0,
    layer_scale_init: float | None = None,
    qk_norm: bool = False,
    activation: str | Callable | None = None,
    layer_norm_epsilon: float = 1e-6,
    classifier_activation: str | Callable | None = None,
    head_init: str | keras.initializers.Initializer = "zeros",
    include_preprocessing: bool = False,
    mean: float | Sequence[float] = 0.5,
    std: float | Sequence[float] = 0.5,
    interpolation: str = "bilinear",
    crop_fraction: float = 1.0,
    name: str | None = None,
) -> keras.Model:
    """Builds a Vision Transformer.

    The model is a plain functional `keras.Model` from images, (batch, height, width, in_channels), channels last
    whatever `keras.config.image_data_format()` says, to logits, (batch, num_classes), in float32 under any dtype
    policy. Its layers are named `normalization`, `patch_embedding`, `class_token`, `position_embedding`, `block_00`,
    `block_01`, ..., `norm`, `pre_logits` and `head`, so that any of them can be tapped: `keras.Model(m.input,
    m.get_layer("block_07").output)`.

    Args:
        variant: String: a size ("Ti", "S", "B", "L", "H", "g", "G"), a slash and a patch size in pixels, as in "B/16".
            Each of its sizes can be overridden by the arguments below.
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels. Where patches do not
            divide it, the remainder is dropped at the right and bottom.
        in_channels: Int, the images' channels.
        num_classes: Int, the number of classes; 0 builds no head and gives the features instead.
        weights: Path of an official .npz checkpoint to load, as `load_weights` does; None for random weights. What was
            loaded is logged by the logger "keras_vit" at level INFO.
        pooling: "token" (the class token), "gap" (mean of the patches), "map" (attention pooling), or None (all tokens,
            for the head too).
        patch_size: Int, or (height, width), in pixels.
        hidden_dim: Int, the width of a token.
        num_layers: Int, the number of blocks.
        num_heads: Int, the attention heads of a block, each `hidden_dim // num_heads` wide.
        mlp_dim: Int, the hidden width of a block's MLP.
        position_embedding: "learned" (one vector a position), "learned2d" (one a row and one a column), "relative" (in
            each block's attention, by 1-D offset), "sincos2d" (fixed) or "none".
        class_token: Bool, whether there is a class token; by default where `pooling` is "token" or None.
        num_registers: Int, the number of register tokens, which get no position embedding.
        representation_size: Int or None: the width of a dense tanh layer before the head.
        dropout_rate: Float in [0, 1), after the position embeddings, the attention and each layer of the MLP.
        attention_dropout_rate: Float in [0, 1), on the attention weights.
        drop_path_rate: Float in [0, 1), stochastic depth: of the last block, rising linearly from 0 at the first.
        patch_dropout_rate: Float in [0, 1), the share of the patches that each training step leaves out.
        layer_scale_init: Float or None: the initial value of the scale of each residual branch.
        qk_norm: Bool, whether queries and keys are layer-normalised.
        activation: "gelu_tanh", "gelu" (exact) or any Keras activation. None takes the one that the weights were
            trained with, and "gelu_tanh", the official one, without weights.
        layer_norm_epsilon: Float, the epsilon of all norms.
        classifier_activation: Activation of the head; None gives logits.
        head_init: Initializer of the head's kernel; zeros, as in the official Flax code, by default.
        include_preprocessing: Bool. True makes the model take raw images of 0..255; False takes images as
            `preprocess_input` returns them.
        mean: Float, or one a channel: the mean of images scaled to [0, 1] that `normalization` carries.
        std: Float, or one a channel: the standard deviation, likewise.
        interpolation: String, how images are to be resized for the model, which `normalization` carries: "bilinear",
            "bicubic", "nearest", "lanczos3", "lanczos5" or "area".
        crop_fraction: Float in (0, 1], the share of the shorter side that an evaluation's centre crop keeps, likewise.
        name: String, the model's name.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: If an argument is out of its range, or the weights do not fit the model.
        FileNotFoundError: If there is no file at `weights`.

    Example:

    >>> model = keras_vit.ViT("B/16", num_classes=10)
    >>> model(np.zeros((1, 224, 224, 3))).shape
    (1, 10)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929).
    """
    size, variant_patch_size = decode_variant(variant)
    patch_size = arguments.pair("patch_size", variant_patch_size if patch_size is None else patch_size)
    hidden_dim = arguments.positive_int("hidden_dim", size.hidden_dim if hidden_dim is None else hidden_dim)
    num_layers = arguments.positive_int("num_layers", size.num_layers if num_layers is None else num_layers)
    num_heads = arguments.positive_int("num_heads", size.num_heads if num_heads is None else num_heads)
    mlp_dim = arguments.positive_int("mlp_dim", size.mlp_dim if mlp_dim is None else mlp_dim)
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
    any_size = isinstance(image_size, (tuple, list)) and tuple(image_size) == (None, None)
    image_size = (None, None) if any_size else arguments.pair("image_size", image_size)
    if class_token is None:
        class_token = pooling in ("token", None)
    if pooling == "token" and not class_token:
        raise ValueError('Expected a class token with pooling="token". Received: class_token=False')
    num_prefix_tokens = int(class_token) + arguments.non_negative_int("num_registers", num_registers)

    source = None if weights is None else inspect_file(weights)
    if activation is None:
        activation = source.activation if source else DEFAULT_ACTIVATION
        allow = ()
    else:
        allow = ("activation",)
    if any_size:
        # The grid of the weights is kept as it is: whatever the input's size, it is resized once and not twice.
        grid_size = source and source.grid_size
        grid_size = grid_size or arguments.patch_grid(DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE, patch_size)
    else:
        grid_size = arguments.patch_grid(*image_size, patch_size)

    inputs = keras.Input((*image_size, arguments.positive_int("in_channels", in_channels)), name="images")
    images = layers.ImageNormalization(
        mean=mean,
        std=std,
        apply=include_preprocessing,
        interpolation=interpolation,
        crop_fraction=crop_fraction,
        name="normalization",
    )(inputs)
    x = layers.PatchEmbedding(hidden_dim, patch_size, name="patch_embedding")(images)
    if num_registers:
        x = layers.PrefixTokens(
            num_registers, initializer=keras.initializers.RandomNormal(stddev=1e-6), name="registers"
        )(x)
    if class_token:
        x = layers.ClassToken(name="class_token")(x)
    if position_embedding in layers.position_embedding.METHODS:
        position_layer = layers.PositionEmbedding(
            grid_size,
            method=position_embedding,
            patch_size=patch_size,
            num_prefix_tokens=num_prefix_tokens,
            num_prefix_positions=int(class_token),
            name="position_embedding",
        )
        x = position_layer(x, images) if any_size else position_layer(x)
    if dropout_rate:
        x = keras.layers.Dropout(dropout_rate, name="dropout")(x)
    if patch_dropout_rate:
        x = layers.PatchDropout(patch_dropout_rate, num_prefix_tokens=num_prefix_tokens, name="patch_dropout")(x)
    for i in range(num_layers):
        x = layers.TransformerBlock(
            num_heads,
            mlp_dim,
            dropout_rate=dropout_rate,
            attention_dropout_rate=attention_dropout_rate,
            drop_path_rate=drop_path_rate * i / max(num_layers - 1, 1),
            layer_scale_init=layer_scale_init,
            qk_norm=qk_norm,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            max_relative_distance=num_prefix_tokens + grid_size[0] * grid_size[1] - 1
            if position_embedding == "relative"
            else None,
            name=f"block_{i:02d}",
        )(x)
    x = keras.layers.LayerNormalization(epsilon=layer_norm_epsilon, name="norm")(x)
    if pooling == "map":
        x = layers.AttentionPooling(
            num_heads, mlp_dim, activation=activation, layer_norm_epsilon=layer_norm_epsilon, name="pooling"
        )(x)
    elif pooling is not None:
        x = layers.TokenPooling(pooling, num_prefix_tokens=num_prefix_tokens, name="pooling")(x)
    # As in the official code, pre_logits is there in any case, and its tanh comes after it.
    if representation_size is None:
        x = keras.layers.Identity(name="pre_logits")(x)
    else:
        x = keras.layers.Dense(
            arguments.positive_int("representation_size", representation_size),
            kernel_initializer="lecun_normal",
            name="pre_logits",
        )(x)
        x = keras.layers.Activation("tanh", name="pre_logits_tanh")(x)
    if num_classes:
        x = keras.layers.Dense(
            num_classes, activation=classifier_activation, kernel_initializer=head_init, dtype="float32", name="head"
        )(x)
    model = keras.Model(inputs, x, name=name or "vit_" + variant.replace("/", ""))
    if weights is not None:
        logger.info("%s", load_weights(model, weights, allow=allow))
    return model


def _named_builder(name: str, variant: str) -> Callable[..., keras.Model]:
    """Makes the builder of one variant: ViT with the variant set, and with a signature and a docstring of its own."""

    def build(**kwargs):
        return ViT(variant, **kwargs)

    signature = inspect.signature(ViT)
    build.__signature__ = signature.replace(parameters=[p for n, p in signature.parameters.items() if n != "variant"])
    build.__name__ = build.__qualname__ = name
    build.__doc__ = (
        f'Builds a ViT-{variant}: `keras_vit.ViT("{variant}", ...)`, which explains the arguments.\n\n'
        f"Example:\n\n>>> model = keras_vit.{name}(num_classes=10)"
    )
    return build


ViTTi16 = _named_builder("ViTTi16", "Ti/16")
ViTS16 = _named_builder("ViTS16", "S/16")
ViTS32 = _named_builder("ViTS32", "S/32")
ViTB8 = _named_builder("ViTB8", "B/8")
ViTB16 = _named_builder("ViTB16", "B/16")
ViTB32 = _named_builder("ViTB32", "B/32")
ViTL16 = _named_builder("ViTL16", "L/16")
ViTL32 = _named_builder("ViTL32", "L/32")
ViTH14 = _named_builder("ViTH14", "H/14")
ViTg14 = _named_builder("ViTg14", "g/14")
ViTG14 = _named_builder("ViTG14", "G/14")
