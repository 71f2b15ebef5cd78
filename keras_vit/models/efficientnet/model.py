"""EfficientNet models."""

import os
from collections.abc import Callable, Sequence

import keras

from keras_vit import arguments, layers
from keras_vit.config import Preprocessing
from keras_vit.layers.downsampling import conv
from keras_vit.models.checkpoint import Checkpoint
from keras_vit.models.efficientnet.checkpoint import SETTINGS, preprocessing_for
from keras_vit.models.efficientnet.config import EfficientNetConfig, decode_efficientnet, efficientnet_of
from keras_vit.models.efficientnet.inverted_bottleneck import InvertedBottleneck, batch_norm
from keras_vit.models.family import RecordedModel, fields_from, given_settings, with_dtype
from keras_vit.models.loading import load_checkpoint
from keras_vit.models.zoo import local_path


@keras.saving.register_keras_serializable(package="keras_vit")
class EfficientNetModel(RecordedModel):
    """An EfficientNet as a functional `keras.Model`, built by `keras_vit.EfficientNet`."""


@with_dtype
def EfficientNet(
    variant: str,
    *,
    image_size: int | tuple[int, int] | tuple[None, None] | None = None,
    in_channels: int = 3,
    num_classes: int = 1000,
    weights: str | os.PathLike | None = None,
    widths: Sequence[int] | None = None,
    repeats: Sequence[int] | None = None,
    padding: str | None = None,
    batch_norm_epsilon: float | None = None,
    dropout_rate: float | None = None,
    drop_path_rate: float = 0.2,
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
) -> EfficientNetModel:
    """Builds an EfficientNet: a convolutional network of inverted bottlenecks with batch normalization.

    A functional `keras_vit.models.EfficientNetModel` from images to logits, as in `keras_vit.ViT`. Layers are named
    `normalization`, `stem_conv`, `stem_norm`, `stage_1_block_01`, ..., `top_conv`, `top_norm`, `pooling` and `head`.

    Args:
        variant: String, "B0" to "B8" or "L2".
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels. None: that of the
            variant, 224 for "B0" to 800 for "L2".
        widths: Ints, the channels of the stem, of each of 7 stages and of the top. None: as in the variant.
        repeats: Ints, the number of blocks of each stage. None: as in the variant.
        padding: Padding of the convolutions that reduce the image, which changes the logits: "same" (the official code,
            whose models timm calls `tf_efficientnet_*`) or "symmetric" (timm's own models). None: as in the weights,
            else "same".
        batch_norm_epsilon: Float, the epsilon of all norms. None: as in the weights, else 1e-3; timm's own: 1e-5.
        dropout_rate: Float in [0, 1), before the head. None: as in the variant, 0.2 to 0.5.
        drop_path_rate: Float in [0, 1), the stochastic depth: that of block i of N is `drop_path_rate * i / N`.
        preprocessing: A `keras_vit.Preprocessing`. None: as in the weights, else that of the official code, with
            ImageNet's mean and standard deviation.
        **others: As in `keras_vit.ViT`.

    Raises:
        ValueError: If an argument is out of range, the weights do not fit the model, or their padding is unknown.
        FileNotFoundError: If `weights` does not exist.

    Example:

    >>> model = keras_vit.EfficientNet("B0", image_size=64, num_classes=10)
    >>> model.output_shape
    (None, 10)

    Reference: [arXiv 1905.11946](https://arxiv.org/abs/1905.11946), table 1; L2:
    [arXiv 1911.04252](https://arxiv.org/abs/1911.04252), table 7. Initialized as in the official code, but for the
    head, which is zero here. On several devices each PyTorch process normalizes by the statistics of its own images.
    """
    given = dict(locals())
    arguments.class_names(class_names, num_classes)
    scale = decode_efficientnet(variant)
    checkpoint = None
    if weights is not None:
        checkpoint = Checkpoint(local_path(weights, f"EfficientNet{variant}"))
        _check_settings(checkpoint, given)
    elif preprocessing is None:
        given["preprocessing"] = Preprocessing(**preprocessing_for(image_size or scale.image_size))
    fields = fields_from(EfficientNet, EfficientNetConfig, given, checkpoint, *SETTINGS)
    config = EfficientNetConfig.from_variant(variant, **fields)
    inputs = keras.Input((*config.image_size, config.in_channels), name="images")
    x = layers.ImageNormalization(apply=include_preprocessing, config=config, name="normalization")(inputs)
    if config.padding == "symmetric":
        x = keras.layers.ZeroPadding2D(1, data_format="channels_last", name="stem_pad")(x)
    x = conv(keras.layers.Conv2D, 3, 2, config.padding, filters=config.widths[0], name="stem_conv")(x)
    x = batch_norm("stem_norm", config.batch_norm_epsilon)(x)
    x = keras.layers.Activation("silu", name="stem_activation")(x)
    x = _blocks(x, config, drop_path_rate)
    x = conv(keras.layers.Conv2D, 1, 1, "same", filters=config.widths[-1], name="top_conv")(x)
    x = batch_norm("top_norm", config.batch_norm_epsilon)(x)
    x = keras.layers.Activation("silu", name="top_activation")(x)
    x = keras.layers.GlobalAveragePooling2D(data_format="channels_last", dtype="float32", name="pooling")(x)
    if config.num_classes:
        rate = arguments.rate("dropout_rate", scale.dropout_rate if dropout_rate is None else dropout_rate)
        x = keras.layers.Dropout(rate, dtype="float32", name="dropout")(x)
        options = {"activation": config.classifier_activation, "kernel_initializer": head_init, "dtype": "float32"}
        x = keras.layers.Dense(config.num_classes, name="head", **options)(x)
    size = efficientnet_of(config.widths, config.repeats)
    model = EfficientNetModel(inputs, x, name=name or "_".join(filter(None, ("efficientnet", size))))
    if checkpoint is not None:
        load_checkpoint(model, checkpoint, allow=given_settings(given)).log()
    return model


def _check_settings(checkpoint, given):
    """Raises if neither the caller nor the weights tell a setting that changes the outputs."""
    unknown = [name for name in SETTINGS if checkpoint.settings[name] is None and given[name] is None]
    if unknown:
        raise ValueError(
            f"{checkpoint.path!r} does not state {' and '.join(unknown)}, which change its outputs. Expected "
            'padding="same", batch_norm_epsilon=1e-3 for the official weights, which timm calls tf_efficientnet_*, or '
            f'"symmetric", 1e-5 for timm\'s own. Received: {", ".join(f"{name}=None" for name in unknown)}'
        )


def _blocks(x, config, drop_path_rate):
    rate, count = arguments.rate("drop_path_rate", drop_path_rate), sum(config.repeats)
    for i, (name, stage, width, strides) in enumerate(config.blocks()):
        x = InvertedBottleneck(
            width,
            stage.kernel_size,
            strides,
            stage.expansion,
            config.padding,
            config.batch_norm_epsilon,
            drop_path_rate=rate * i / count,
            name=name,
        )(x)
    return x
