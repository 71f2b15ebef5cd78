"""EfficientNet models."""

from typing import Any

import keras

from keras_vit.layers.downsampling import conv
from keras_vit.layers.padding import ZeroPadding2D
from keras_vit.models.efficientnet import checkpoint, names
from keras_vit.models.efficientnet.config import EfficientNetConfig
from keras_vit.models.efficientnet.inverted_bottleneck import InvertedBottleneck, batch_norm
from keras_vit.models.family import Family, FamilyModel, build, dense_head, takes, usual_arguments
from keras_vit.models.vit.names.keras import keras_source


def connect(images, config, *, head_init="zeros", dropout_rate=0.2, drop_path_rate=0.2):
    """Adds the layers of an `EfficientNetConfig` to a functional graph; returns the outputs."""
    x = images
    if config.padding == "symmetric":
        x = ZeroPadding2D(1, name="stem_pad")(x)
    x = conv(keras.layers.Conv2D, 3, 2, config.padding, filters=config.widths[0], name="stem_conv")(x)
    x = batch_norm("stem_norm", config.batch_norm_epsilon)(x)
    x = keras.layers.Activation("silu", name="stem_activation")(x)
    for i, (name, stage, width, strides) in enumerate(config.blocks()):
        options = {"drop_path_rate": drop_path_rate * i / sum(config.repeats), "name": name}
        sizes = width, stage.kernel_size, strides, stage.expansion
        x = InvertedBottleneck(*sizes, config.padding, config.batch_norm_epsilon, **options)(x)
    x = conv(keras.layers.Conv2D, 1, 1, "same", filters=config.widths[-1], name="top_conv")(x)
    x = batch_norm("top_norm", config.batch_norm_epsilon)(x)
    x = keras.layers.Activation("silu", name="top_activation")(x)
    x = keras.layers.GlobalAveragePooling2D(data_format="channels_last", dtype="float32", name="pooling")(x)
    if config.num_classes:
        x = keras.layers.Dropout(dropout_rate, dtype="float32", name="dropout")(x)
    return dense_head(x, config, head_init)


EFFICIENTNET = Family(
    config=EfficientNetConfig,
    connect=connect,
    builder="EfficientNet",
    above=("top_conv", "top_norm", "top_activation", "pooling"),
    sources=(
        *(names.TIMM_EFFICIENTNET, names.EFFICIENTNET, names.KERAS_APPLICATIONS),
        keras_source("efficientnet", "stage_1_block_01"),
    ),
    read_config=checkpoint.read_config,
    settings=("padding", "batch_norm_epsilon"),
    formats={"timm": names.TIMM_EFFICIENTNET},
    timm=checkpoint.timm_architecture,
)


@takes(usual_arguments, EFFICIENTNET)
def EfficientNet(variant: str, **fields: Any) -> FamilyModel:
    """Builds an EfficientNet: a convolutional network of inverted bottlenecks with batch normalization.

    The model is a functional `keras_vit.models.FamilyModel` and maps images to logits, like a ViT. Its layers are
    named `normalization`, `stem_conv`, `stem_norm`, `stage_1_block_01`, ..., `top_conv`, `top_norm`, `pooling` and
    `head`.

    Args:
        variant: String, "B0" to "B8" or "L2".
        image_size: Int or (height, width), in pixels, or (None, None) for any size at run time. None: the image size of
            the weights or, without weights, of the variant. "B0" has images of 224 x 224 pixels, "L2" of 800 x 800.
        dropout_rate: Float in [0, 1), the dropout before the head. None: the rate of the variant, which is 0.2 for "B0"
            and 0.5 for "L2".
        drop_path_rate: Float in [0, 1). Block i of N, counted from 0, has the stochastic-depth rate
            `drop_path_rate * i / N`. None: 0.2.
        **fields: Other fields of `keras_vit.EfficientNetConfig`, which override the variant and the weights. The
            remaining arguments are as in `keras_vit.ViT`.

    Raises:
        ValueError: If an argument is unknown or out of range, if the weights do not fit the model, or if `padding` or
            `batch_norm_epsilon` is not given and does not follow from the weights.
        FileNotFoundError: If `weights` does not exist.

    Example:

    >>> model = keras_vit.EfficientNet("B0", image_size=64, num_classes=10)
    >>> model.output_shape
    (None, 10)

    Reference: [arXiv 1905.11946](https://arxiv.org/abs/1905.11946), table 1; L2: [arXiv
    1911.04252](https://arxiv.org/abs/1911.04252), table 7. Initialized as in the official code, except for the head,
    which is zero. On several devices, each PyTorch process computes batch statistics from only its own images.
    """
    return build(EFFICIENTNET, variant, fields)
