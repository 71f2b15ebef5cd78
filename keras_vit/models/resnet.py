"""ResNets of standardized convolutions, as the stem of a hybrid and as the body of a BiT model."""

import keras

from keras_vit import layers
from keras_vit.layers.bottleneck import CONV_OPTIONS, NORM_OPTIONS
from keras_vit.variants import ROOT_WIDTH


def hybrid_stem(images, stages, width_factor=1.0):
    """Adds the ResNet of a hybrid to a functional graph.

    Args:
        images: The tensor of images, (batch, height, width, channels).
        stages: The number of units of each stage; () for the root alone.
        width_factor: Float, the widths' multiple of those of a plain ResNet.

    Returns:
        The feature map, (batch, height / s, width / s, channels), sides rounded up, where s is `total_stride(stages)`.
    """
    width = _root_width(width_factor)
    x = layers.StandardizedConv2D(width, 7, 2, name="root_conv", **CONV_OPTIONS[False])(images)
    x = layers.GroupNormalization(name="root_norm", **NORM_OPTIONS[False])(x)
    x = keras.layers.Activation("relu", name="root_relu")(x)
    x = keras.layers.MaxPooling2D(3, 2, padding="same", data_format="channels_last", name="root_pool")(x)
    return _units(x, width, stages, pre_activation=False)


def bit_body(images, stages, width_factor=1.0, pool_padding="lowest"):
    """Adds the ResNet of a BiT model, all that is below its pooling, to a functional graph, as `hybrid_stem` does."""
    width = _root_width(width_factor)
    x = layers.StandardizedConv2D(width, 7, 2, name="root_conv", **CONV_OPTIONS[True])(images)
    x = layers.SymmetricMaxPooling2D(3, 2, padding=pool_padding, name="root_pool")(x)
    x = _units(x, width, stages, pre_activation=True)
    x = layers.GroupNormalization(name="norm", **NORM_OPTIONS[True])(x)
    return keras.layers.Activation("relu", name="relu")(x)


def _units(x, width, stages, pre_activation):
    for s, num_units in enumerate(stages):
        for u in range(num_units):
            x = layers.Bottleneck(
                width * 2**s,
                strides=2 if s and not u else 1,
                pre_activation=pre_activation,
                name=f"stage_{s + 1}_unit_{u + 1:02d}",
            )(x)
    return x


def _root_width(width_factor):
    return int(ROOT_WIDTH * width_factor)
