"""Big Transfer (BiT) models, and the ResNets of hybrids."""

import os
from collections.abc import Callable, Sequence

import keras

from keras_vit import arguments, layers
from keras_vit.activations import relu_with_nan
from keras_vit.config import Preprocessing
from keras_vit.models.bit.bottleneck import Bottleneck, conv_options, norm_options
from keras_vit.models.bit.config import ROOT_WIDTH, BiTConfig
from keras_vit.models.bit.group_normalization import GroupNormalization
from keras_vit.models.bit.standardized_conv import StandardizedConv2D
from keras_vit.models.checkpoint import Checkpoint
from keras_vit.models.family import RecordedModel, fields_from, given_settings, with_dtype
from keras_vit.models.loading import load_checkpoint
from keras_vit.models.zoo import local_path


@keras.saving.register_keras_serializable(package="keras_vit")
class BigTransfer(RecordedModel):
    """A BiT model as a functional `keras.Model`, built by `keras_vit.BiT`."""


@with_dtype
def BiT(
    variant: str,
    *,
    image_size: int | tuple[int, int] | tuple[None, None] = 224,
    in_channels: int = 3,
    num_classes: int = 1000,
    weights: str | os.PathLike | None = None,
    stages: Sequence[int] | None = None,
    width_factor: float | None = None,
    pool_padding: str | None = None,
    resnet_epsilons: str | None = None,
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
) -> BigTransfer:
    """Builds a BiT model: a pre-activation ResNet with group normalization and standardized convolutions.

    A functional `keras_vit.models.BigTransfer` from images to logits, as in `keras_vit.ViT`. Layers are named
    `normalization`, `root_conv`, `root_pool`, `stage_1_unit_01`, ..., `norm`, `relu`, `pooling` and `head`.

    Args:
        variant: String: R, depth (50, 101, 152 or 200), x, width factor, such as "R50x1".
        stages: Ints, the units per stage. None: as in the variant.
        width_factor: Float, a multiple of 0.5, the width relative to a standard ResNet. None: as in the variant.
        pool_padding: Padding of the max pooling, which changes the logits: "lowest" (later Flax code) or "zeros" (timm
            and the code published with the weights). None: as in the weights, if they tell, else "lowest".
        resnet_epsilons: The epsilons of its convolutions and norms: "official", or "timm" for those of timm and
            transformers. None: as in the weights, else "official".
        **others: As in `keras_vit.ViT`.

    Raises:
        ValueError: If an argument is out of range, or the weights do not fit the model.
        FileNotFoundError: If `weights` does not exist.

    Example:

    >>> model = keras_vit.BiT("R50x1", image_size=128, num_classes=10)
    >>> model.output_shape
    (None, 10)

    Reference: [arXiv 1912.11370](https://arxiv.org/abs/1912.11370).
    """
    given = dict(locals())
    arguments.class_names(class_names, num_classes)
    checkpoint = None if weights is None else Checkpoint(local_path(weights, f"BiT{variant}"))
    fields = fields_from(BiT, BiTConfig, given, checkpoint, "pool_padding", "resnet_epsilons")
    config = BiTConfig.from_variant(variant, **fields)
    conv, norm = conv_options(True, config.resnet_epsilons), norm_options(True, config.resnet_epsilons)
    inputs = keras.Input((*config.image_size, config.in_channels), name="images")
    x = layers.ImageNormalization(apply=include_preprocessing, config=config, name="normalization")(inputs)
    x = StandardizedConv2D(root_width(config), 7, 2, name="root_conv", **conv)(x)
    x = layers.SymmetricMaxPooling2D(3, 2, padding=config.pool_padding, name="root_pool")(x)
    x = _units(x, config, pre_activation=True)
    x = GroupNormalization(name="norm", **norm)(x, show_nan=False)
    x = keras.layers.Activation(relu_with_nan, name="relu")(x)
    x = keras.layers.GlobalAveragePooling2D(data_format="channels_last", dtype="float32", name="pooling")(x)
    if config.num_classes:
        options = {"activation": config.classifier_activation, "kernel_initializer": head_init, "dtype": "float32"}
        x = keras.layers.Dense(config.num_classes, name="head", **options)(x)
    model = BigTransfer(inputs, x, name=name or "bit_" + variant)
    if checkpoint is not None:
        load_checkpoint(model, checkpoint, allow=given_settings(given)).log()
    return model


def hybrid_stem(images, config):
    """Adds the ResNet of a hybrid to a functional graph; returns the feature map."""
    conv, norm = conv_options(False, config.resnet_epsilons), norm_options(False, config.resnet_epsilons)
    x = StandardizedConv2D(root_width(config), 7, 2, name="root_conv", **conv)(images)
    x = GroupNormalization(name="root_norm", **norm)(x)
    x = keras.layers.Activation("relu", name="root_relu")(x)
    x = keras.layers.MaxPooling2D(3, 2, padding="same", data_format="channels_last", name="root_pool")(x)
    return _units(x, config, pre_activation=False)


def root_width(config):
    """The number of channels of the first convolution."""
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
