"""CoAtNet models: convolutions in the first stages, and relative attention in the last stages."""

from typing import Any

import keras

from keras_vit import activations
from keras_vit.layers.downsampling import conv
from keras_vit.layers.padding import ZeroPadding2D
from keras_vit.models.coatnet import checkpoint
from keras_vit.models.coatnet.config import EXPANSION, CoAtNetConfig
from keras_vit.models.coatnet.mbconv import MBConv
from keras_vit.models.coatnet.names import TIMM_COATNET
from keras_vit.models.coatnet.relative_transformer_block import RelativeTransformerBlock, norm_layer
from keras_vit.models.family import Family, FamilyModel, build, dense_head, pre_logits, takes, usual_arguments

# The config fields that are arguments of `MBConv`, and the config fields that are arguments of
# `RelativeTransformerBlock`.
_CONV_FIELDS = ("downsampling", "pre_norm_activation", "se_activation", "se_before_norm")
_TRANSFORMER_FIELDS = ("shortcut_bias", "layer_scale_init", "activation", "position_mlp_dim")


def connect(images, config, *, head_init="zeros", dropout_rate=0.0, drop_path_rate=0.0):
    """Adds the layers of a `CoAtNetConfig` to a functional graph; returns the outputs."""
    first, second = config.stem_widths
    x = images
    if config.padding == "symmetric":
        x = ZeroPadding2D(1, name="stem_padding")(x)
    x = conv(keras.layers.Conv2D, 3, 2, config.padding, filters=first, name="stem_conv")(x)
    x = norm_layer("batch", config.batch_norm_epsilon, "stem_norm")(x)
    x = keras.layers.Activation(activations.get(config.conv_activation), name="stem_activation")(x)
    x = conv(keras.layers.Conv2D, 3, 1, config.padding, filters=second, name="stem_conv_2")(x)
    for i, block in enumerate(config.blocks):
        x = _layer(config, block, drop_path_rate * i / max(len(config.blocks) - 1, 1))(x)
    norm = norm_layer(config.transformer_norm, config.layer_norm_epsilon, "norm")
    pooling = keras.layers.GlobalAveragePooling2D(data_format="channels_last", dtype="float32", name="pooling")
    for layer in (pooling, norm) if config.norm_after_pooling else (norm, pooling):
        x = layer(x)
    x = pre_logits(x, config)
    if dropout_rate:
        x = keras.layers.Dropout(dropout_rate, name="dropout")(x)
    return dense_head(x, config, head_init)


COATNET = Family(
    config=CoAtNetConfig,
    connect=connect,
    builder="CoAtNet",
    above=("norm", "pooling", "pre_logits", "pre_logits_tanh"),
    sources=(TIMM_COATNET,),
    read_config=checkpoint.read_config,
    refused_h5="stem_conv_2/",
    settings=(
        *("downsampling", "pool_type", "padding", "activation", "conv_activation", "pre_norm_activation"),
        *("se_activation", "layer_norm_epsilon", "batch_norm_epsilon"),
    ),
    formats={"timm": TIMM_COATNET},
    timm=checkpoint.timm_architecture,
)


@takes(usual_arguments, COATNET)
def CoAtNet(variant: str, **fields: Any) -> FamilyModel:
    """Builds a CoAtNet: stages of MBConv blocks, then stages of transformer blocks with relative attention.

    The model is a functional `keras_vit.models.FamilyModel` and maps images to logits, like a ViT. Its layers are
    named `normalization`, `stem_conv`, `stem_norm`, `stem_activation`, `stem_conv_2`, `stage_1_block_01`, ..., `norm`,
    `pooling`, `pre_logits` and `head`. Each stage halves the height and width of the feature map.

    "0" to "5" are the paper's models. "coatnet_0" to "coatnet_5" are timm's versions of the same models, and differ in
    details. No weights were published for these twelve models. Many other models of timm have weights, such as
    "coatnet_0_rw". The full list is `keras_vit.models.coatnet.config.VARIANTS`.

    Args:
        variant: "0" to "5", a name of timm, such as "coatnet_0_rw_224", or a short form of it, such as "0_rw".
        image_size: Int or (height, width), in pixels, or (None, None) for any size at run time. None: the image size of
            the weights or, without weights, the size in timm's name. If there is no size in the name, 224.
        dropout_rate: Float in [0, 1), the dropout before the head. None: 0.
        drop_path_rate: Float in [0, 1), the stochastic-depth rate of the last block. The rates rise linearly from 0 in
            the first block. None: 0.
        **fields: Other fields of `keras_vit.CoAtNetConfig`, which override the variant and the weights. The remaining
            arguments are as in `keras_vit.ViT`.

    Raises:
        ValueError: If an argument is unknown or out of range, or the weights do not fit the model.
        FileNotFoundError: If `weights` does not exist.

    Example:

    >>> model = keras_vit.CoAtNet("0", num_classes=10)
    >>> model.output_shape
    (None, 10)

    Reference: [arXiv 2106.04803](https://arxiv.org/abs/2106.04803), sections 2 and 4.1 and table 3. Details that the
    paper leaves open follow timm's code: the hidden layer of the head and its tanh, the norm after the pooling,
    shortcuts without a projection for equal channels, and the epsilons. The parameter counts in the paper's table 4
    include the hidden layer of the head.
    """
    return build(COATNET, variant, fields)


def _layer(config, block, drop_path_rate):
    options = {"strides": block.strides, "pool_type": config.pool_type, "padding": config.padding}
    options |= {"drop_path_rate": drop_path_rate, "name": block.name}
    if block.is_conv:
        hidden_dim = EXPANSION * block.attention_width
        return MBConv(
            block.width,
            hidden_dim,
            max(1, int(config.se_ratio * (block.width if config.expanded_from == "output" else hidden_dim))),
            activation=config.conv_activation,
            use_bias=config.conv_bias,
            epsilon=config.batch_norm_epsilon,
            **{name: getattr(config, name) for name in _CONV_FIELDS},
            **options,
        )
    return RelativeTransformerBlock(
        block.attention_width // config.head_dim,
        config.head_dim,
        block.width,
        config.grid(block.stage),
        norm=config.transformer_norm,
        epsilon=config.layer_norm_epsilon,
        interpolation=config.position_interpolation,
        **{name: getattr(config, name) for name in _TRANSFORMER_FIELDS},
        **options,
    )
