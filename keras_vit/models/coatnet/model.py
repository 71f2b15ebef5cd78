"""CoAtNet models: convolutions in the first stages, relative attention in the last."""

import os
from collections.abc import Callable, Sequence

import keras

from keras_vit import activations, arguments, layers
from keras_vit.config import Preprocessing
from keras_vit.layers import initializers
from keras_vit.layers.downsampling import conv
from keras_vit.models.checkpoint import Checkpoint
from keras_vit.models.coatnet.checkpoint import SETTINGS
from keras_vit.models.coatnet.config import EXPANSION, CoAtNetConfig, image_size_of
from keras_vit.models.coatnet.mbconv import MBConv
from keras_vit.models.coatnet.relative_transformer_block import RelativeTransformerBlock, norm_layer
from keras_vit.models.family import RecordedModel, fields_from, with_dtype
from keras_vit.models.loading import load_checkpoint
from keras_vit.models.zoo import local_path


@keras.saving.register_keras_serializable(package="keras_vit")
class ConvolutionAndAttention(RecordedModel):
    """A CoAtNet as a functional `keras.Model`, built by `keras_vit.CoAtNet`."""


@with_dtype
def CoAtNet(
    variant: str,
    *,
    image_size: int | tuple[int, int] | tuple[None, None] | None = None,
    in_channels: int = 3,
    num_classes: int = 1000,
    weights: str | os.PathLike | None = None,
    depths: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
    stem_widths: tuple[int, int] | None = None,
    conv_depths: Sequence[int] | None = None,
    head_dim: int | None = None,
    expanded_from: str | None = None,
    downsampling: str | None = None,
    pool_type: str | None = None,
    padding: str | None = None,
    activation: str | None = None,
    conv_activation: str | None = None,
    pre_norm_activation: bool | None = None,
    conv_bias: bool | None = None,
    shortcut_bias: bool | None = None,
    se_ratio: float | None = None,
    se_activation: str | None = None,
    se_before_norm: bool | None = None,
    transformer_norm: str | None = None,
    layer_scale_init: float | None = None,
    position_mlp_dim: int | None = None,
    position_interpolation: str | None = None,
    table_image_size: int | tuple[int, int] | None = None,
    norm_after_pooling: bool | None = None,
    representation_size: int | None = None,
    layer_norm_epsilon: float | None = None,
    batch_norm_epsilon: float | None = None,
    dropout_rate: float = 0.0,
    drop_path_rate: float = 0.0,
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
) -> ConvolutionAndAttention:
    """Builds a CoAtNet: stages of MBConv blocks, then stages of transformer blocks with relative attention.

    A functional `keras_vit.models.ConvolutionAndAttention` from images to logits, as in `keras_vit.ViT`. Layers are
    named `normalization`, `stem_conv`, `stem_norm`, `stem_activation`, `stem_conv_2`, `stage_1_block_01`, ..., `norm`,
    `pooling`, `pre_logits` and `head`. Each stage halves the feature map.

    "0" to "5" are the paper's models, of which no weights were published. timm's are "coatnet_0" to "coatnet_5", of the
    same sizes with other details, and those with weights, such as "coatnet_0_rw": see
    `keras_vit.models.coatnet.config.VARIANTS`. None, below, stands for the value of the variant.

    Args:
        variant: "0" to "5", or timm's name, as in "coatnet_0_rw_224", or "0_rw" for short.
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels. None: that in timm's
            name, else 224.
        depths: Ints, the number of blocks per stage.
        widths: Ints, the number of channels per stage.
        stem_widths: Ints, the channels of the two 3 x 3 convolutions below the stages.
        conv_depths: Ints, how many of a stage's blocks, the first ones, are MBConv. None: all in the first two stages.
        head_dim: Int, the width of an attention head.
        expanded_from: The channels that a block with more output than input channels counts its inner ones from:
            "output", the paper's, or "input". They are four times as many in an MBConv, and as many in the attention.
        downsampling: What halves the feature map in the branch of an MBConv: "expansion" (the first convolution, the
            paper's), "depthwise" or "pooling" (an average of 2 x 2 before the first convolution).
        pool_type: What halves it elsewhere: "max2", "max3" (windows of 3 x 3) or "avg2".
        padding: Of strided windows of 3 x 3: "same", as in TensorFlow, or "symmetric", as in PyTorch.
        activation: That of the MLPs: "gelu", "gelu_tanh", "silu" or "relu".
        conv_activation: That of the stem and of MBConv.
        pre_norm_activation: Bool, whether an activation follows the first norm of an MBConv.
        conv_bias: Bool, whether the last convolution of an MBConv and that of its shortcut have a bias.
        shortcut_bias: Bool, whether the projection on a transformer block's shortcut has one.
        se_ratio: Float, the width inside squeeze-and-excitation relative to an MBConv's output channels, or, with
            `expanded_from="input"`, to its inner ones.
        se_activation: The activation inside squeeze-and-excitation.
        se_before_norm: Bool, whether squeeze-and-excitation comes before the norm of the depthwise convolution.
        transformer_norm: "layer" or "batch", the norms in transformer blocks and before the head.
        layer_scale_init: Float, the initial value of LayerScale in transformer blocks; without it there is none.
        position_mlp_dim: Int, the hidden width of the MLP that computes the attention's position biases; without it
            they are a table.
        position_interpolation: How a model of any size resizes its tables: "bilinear" (the paper's) or "geometric"
            (timm's).
        table_image_size: Int or (height, width), in pixels: the images whose feature maps the tables of a model of any
            size are stored for. None: as in the weights, else 224.
        norm_after_pooling: Bool; True normalizes the pooled vector instead of the feature map.
        representation_size: Int, the width of a dense tanh layer before the head.
        layer_norm_epsilon: Float, the epsilon of the norms that `transformer_norm` names.
        batch_norm_epsilon: Float, the epsilon of those of the stem and of MBConv.
        dropout_rate: Float in [0, 1), before the head.
        drop_path_rate: Float in [0, 1), the stochastic depth of the last block, rising linearly from 0 at the first.
        **others: As in `keras_vit.ViT`.

    Raises:
        ValueError: If an argument is out of range, or the weights do not fit the model.
        FileNotFoundError: If `weights` does not exist.

    Example:

    >>> model = keras_vit.CoAtNet("0", num_classes=10)
    >>> model.output_shape
    (None, 10)

    Reference: [arXiv 2106.04803](https://arxiv.org/abs/2106.04803), sections 2 and 4.1 and table 3. Where it leaves
    details open, this is timm's code: the hidden layer of the head, whose parameters table 4 includes, its tanh, the
    norm after the pooling, shortcuts without a projection for equal channels, and the epsilons.
    """
    given = dict(locals())
    arguments.class_names(class_names, num_classes)
    arguments.rate("drop_path_rate", drop_path_rate)
    checkpoint = None if weights is None else Checkpoint(local_path(weights, f"CoAtNet{variant}"))
    if image_size is None:
        given["image_size"] = image_size_of(variant)
    fields = fields_from(CoAtNet, CoAtNetConfig, given, checkpoint)
    if checkpoint is not None and arguments.image_size(given["image_size"]) == (None, None):
        # Keeps the weights' tables, so that they are resized only once.
        fields.setdefault("table_image_size", checkpoint.image_size)
    config = CoAtNetConfig.from_variant(variant, **fields)
    inputs = keras.Input((*config.image_size, config.in_channels), name="images")
    x = layers.ImageNormalization(apply=include_preprocessing, config=config, name="normalization")(inputs)
    x = _stem(x, config)
    for i, block in enumerate(config.blocks):
        x = _layer(config, block, drop_path_rate * i / max(len(config.blocks) - 1, 1))(x)
    x = _head(x, config, dropout_rate, head_init)
    model = ConvolutionAndAttention(inputs, x, name=name or "coatnet_" + str(variant).removeprefix("coatnet_"))
    if checkpoint is not None:
        allow = [name for name in SETTINGS if given.get(name) is not None]
        load_checkpoint(model, checkpoint, allow=allow).log()
    return model


def _stem(x, config):
    first, second = config.stem_widths
    if config.padding == "symmetric":
        x = keras.layers.ZeroPadding2D(1, data_format="channels_last", name="stem_padding")(x)
    x = _stem_conv(first, 2, config.padding, "stem_conv")(x)
    x = norm_layer("batch", config.batch_norm_epsilon, "stem_norm")(x)
    x = keras.layers.Activation(activations.get(config.conv_activation), name="stem_activation")(x)
    return _stem_conv(second, 1, config.padding, "stem_conv_2")(x)


def _stem_conv(filters, strides, padding, name):
    return conv(keras.layers.Conv2D, 3, strides, padding, filters=filters, name=name)


def _layer(config, block, drop_path_rate):
    """Returns the layer of a `Block`."""
    if block.is_conv:
        hidden_dim = EXPANSION * block.attention_width
        return MBConv(
            block.width,
            hidden_dim,
            max(1, int(config.se_ratio * (block.width if config.expanded_from == "output" else hidden_dim))),
            strides=block.strides,
            downsampling=config.downsampling,
            pool_type=config.pool_type,
            padding=config.padding,
            activation=config.conv_activation,
            pre_norm_activation=config.pre_norm_activation,
            use_bias=config.conv_bias,
            se_activation=config.se_activation,
            se_before_norm=config.se_before_norm,
            epsilon=config.batch_norm_epsilon,
            drop_path_rate=drop_path_rate,
            name=block.name,
        )
    return RelativeTransformerBlock(
        block.attention_width // config.head_dim,
        config.head_dim,
        block.width,
        config.grid(block.stage),
        strides=block.strides,
        pool_type=config.pool_type,
        padding=config.padding,
        shortcut_bias=config.shortcut_bias,
        norm=config.transformer_norm,
        epsilon=config.layer_norm_epsilon,
        layer_scale_init=config.layer_scale_init,
        activation=config.activation,
        position_mlp_dim=config.position_mlp_dim,
        interpolation=config.position_interpolation,
        drop_path_rate=drop_path_rate,
        name=block.name,
    )


def _head(x, config, dropout_rate, head_init):
    """Adds the norm, the pooling and the head; returns logits, or features if `num_classes` is 0."""
    norm = norm_layer(config.transformer_norm, config.layer_norm_epsilon, "norm")
    pooling = keras.layers.GlobalAveragePooling2D(data_format="channels_last", dtype="float32", name="pooling")
    for layer in (pooling, norm) if config.norm_after_pooling else (norm, pooling):
        x = layer(x)
    if config.representation_size is None:
        x = keras.layers.Identity(name="pre_logits")(x)
    else:
        init = initializers.LecunNormal()
        x = keras.layers.Dense(config.representation_size, kernel_initializer=init, name="pre_logits")(x)
        x = keras.layers.Activation("tanh", name="pre_logits_tanh")(x)
    if dropout_rate:
        x = keras.layers.Dropout(dropout_rate, name="dropout")(x)
    if config.num_classes:
        options = {"activation": config.classifier_activation, "kernel_initializer": head_init, "dtype": "float32"}
        x = keras.layers.Dense(config.num_classes, name="head", **options)(x)
    return x
