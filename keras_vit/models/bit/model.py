"""Big Transfer (BiT) models, and the ResNets of hybrids."""

from typing import Any

import keras

from keras_vit.layers.downsampling import MaxPooling2D
from keras_vit.layers.symmetric_max_pooling import SymmetricMaxPooling2D
from keras_vit.models.bit import checkpoint, names
from keras_vit.models.bit.bottleneck import Bottleneck, conv_options, norm_options
from keras_vit.models.bit.config import ROOT_WIDTH, BiTConfig
from keras_vit.models.bit.group_normalization import GroupNormalization
from keras_vit.models.bit.standardized_conv import StandardizedConv2D
from keras_vit.models.family import Family, FamilyModel, build, dense_head, takes, usual_arguments
from keras_vit.models.vit.names.keras import keras_source


def connect(images, config, *, head_init="zeros"):
    """Adds the layers of a `BiTConfig` to a functional graph; returns the outputs."""
    conv, norm = conv_options(True, config.resnet_epsilons), norm_options(True, config.resnet_epsilons)
    x = StandardizedConv2D(root_width(config), 7, 2, name="root_conv", **conv)(images)
    x = SymmetricMaxPooling2D(3, 2, padding=config.pool_padding, name="root_pool")(x)
    x = _units(x, config, pre_activation=True)
    x = GroupNormalization(name="norm", **norm)(x)
    x = keras.layers.Activation("relu", name="relu")(x)
    x = keras.layers.GlobalAveragePooling2D(data_format="channels_last", dtype="float32", name="pooling")(x)
    return dense_head(x, config, head_init)


BIT = Family(
    config=BiTConfig,
    connect=connect,
    builder="BiT",
    above=("norm", "relu", "pooling"),
    sources=(names.BIT, names.TIMM_BIT, names.HUGGINGFACE_BIT, keras_source("bit", "stage_1_unit_01")),
    read_config=checkpoint.read_config,
    recognise=names.recognise,
    settings=("resnet_epsilons", "pool_padding"),
    formats={"npz": names.BIT, "timm": names.TIMM_BIT, "huggingface": names.HUGGINGFACE_BIT},
    timm=checkpoint.timm_architecture,
    transformers=checkpoint.transformers_folder,
)


@takes(usual_arguments, BIT)
def BiT(variant: str, **fields: Any) -> FamilyModel:
    """Builds a BiT model: a pre-activation ResNet with group normalization and standardized convolutions.

    The model is a functional `keras_vit.models.FamilyModel` from images to logits, as in `keras_vit.ViT`. Layers are
    named `normalization`, `root_conv`, `root_pool`, `stage_1_unit_01`, ..., `norm`, `relu`, `pooling` and `head`.

    Args:
        variant: String of "R", a depth (50, 101, 152 or 200), "x" and a width factor, such as "R50x1".
        **fields: Other fields of `keras_vit.BiTConfig`, which override the variant and the weights. The remaining
            arguments are as in `keras_vit.ViT`.

    Raises:
        ValueError: If an argument is unknown or out of range, or the weights do not fit the model.
        FileNotFoundError: If `weights` does not exist.

    Example:

    >>> model = keras_vit.BiT("R50x1", image_size=128, num_classes=10)
    >>> model.output_shape
    (None, 10)

    Reference: [arXiv 1912.11370](https://arxiv.org/abs/1912.11370).
    """
    return build(BIT, variant, fields)


def hybrid_stem(images, config):
    """Adds the ResNet of a hybrid to a functional graph; returns the feature map."""
    conv, norm = conv_options(False, config.resnet_epsilons), norm_options(False, config.resnet_epsilons)
    x = StandardizedConv2D(root_width(config), 7, 2, name="root_conv", **conv)(images)
    x = GroupNormalization(name="root_norm", **norm)(x)
    x = keras.layers.Activation("relu", name="root_relu")(x)
    x = MaxPooling2D(3, 2, padding="same", data_format="channels_last", name="root_pool")(x)
    return _units(x, config, pre_activation=False)


def root_width(config):
    """Returns the number of channels of the first convolution."""
    return int(ROOT_WIDTH * config.width_factor)


def _units(x, config, pre_activation):
    for s, num_units in enumerate(config.stages):
        for u in range(num_units):
            x = Bottleneck(
                root_width(config) * 2**s,
                strides=2 if s and not u else 1,
                pre_activation=pre_activation,
                epsilons=config.resnet_epsilons,
                name=f"stage_{s + 1}_unit_{u + 1:02d}",
            )(x)
    return x
