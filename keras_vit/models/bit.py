"""Big Transfer's ResNets, the baselines that Vision Transformers were measured against."""

import os
from collections.abc import Callable, Sequence

import keras

from keras_vit import arguments, layers
from keras_vit.config import BiTConfig
from keras_vit.models.dtype import with_dtype
from keras_vit.models.recorded import RecordedModel
from keras_vit.models.resnet import bit_body
from keras_vit.preprocessing import Preprocessing
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.load import load_checkpoint
from keras_vit.weights.preprocessing import preprocessing_of
from keras_vit.weights.zoo import local_path


@keras.saving.register_keras_serializable(package="keras_vit")
class BigTransfer(RecordedModel):
    """A BiT model: a flat functional `keras.Model` that carries its record, as `keras_vit.BiT` builds it."""


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
    pool_padding: str = "lowest",
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
) -> BigTransfer:
    """Builds a BiT model: a pre-activation ResNet with group normalisation and standardized convolutions.

    The model is a flat functional `keras.Model` from images, (batch, height, width, in_channels), channels last
    whatever `keras.config.image_data_format()` says, to logits, (batch, num_classes), in float32 under any dtype
    policy. Its layers are named `normalization`, `root_conv`, `root_pool`, `stage_1_unit_01`,
    `stage_1_unit_02`, ..., `norm`, `relu`, `pooling` and `head`, so that any of them can be tapped.

    Args:
        variant: String: R, a depth (50, 101, 152 or 200), x and a width factor, as in "R50x1". What it stands for can
            be overridden by `stages` and `width_factor`.
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels.
        in_channels: Int, the images' channels.
        num_classes: Int, the number of classes; 0 builds no head and gives the pooled features instead.
        weights: Path of a checkpoint to load, as `load_weights` does, or the tag of a published one, as
            "imagenet21k" (see `list_weights`), which is downloaded once; None for random weights. What was loaded is
            told by the logger "keras_vit": as a warning where anything was resized, adapted, left out or is new.
        stages: Ints, the number of units of each stage.
        width_factor: Float, a multiple of 0.5, the widths relative to a plain ResNet's.
        pool_padding: "lowest" or "zeros", what surrounds the first convolution's output where its maxima are taken: the
            later Flax code has the one; the code published with the weights, and timm, the other. Logits differ by it.
        classifier_activation: Activation of the head; None gives logits.
        head_init: Initializer of the head's kernel; zeros, as in the official code, by default.
        include_preprocessing: Bool. True makes the model take raw images of 0..255; False takes images as
            `preprocess_input` returns them.
        preprocessing: The `keras_vit.Preprocessing` of its images, which `normalization` carries. None takes what the
            weights were trained with, and the official one without weights; where it has constants for another number
            of channels, their mean. The next four change it.
        mean: Float, or one a channel: the mean of images scaled to the `value_range` of that record, usually [0, 1].
        std: Float, or one a channel: the standard deviation, likewise.
        interpolation: String, how images are to be resized for the model: "bilinear", "bicubic", "nearest", "lanczos3",
            "lanczos5" or "area".
        crop_fraction: Float in (0, 1], the share of the shorter side that an evaluation's centre crop keeps.
        class_names: Strings, the names of the classes, which `normalization` carries: predictions and exports answer
            with them.
        dtype: The dtype policy of all layers but the heads, which compute in float32: "mixed_bfloat16" as an example;
            None takes Keras' global one.
        name: String, the model's name.

    Returns:
        A `keras_vit.models.BigTransfer`, whose `config` is its record.

    Raises:
        ValueError: If an argument is out of its range, or the weights do not fit the model.
        FileNotFoundError: If there is no file at `weights`.

    Example:

    >>> model = keras_vit.BiT("R50x1", image_size=128, num_classes=10)
    >>> model.output_shape
    (None, 10)

    Reference: [arXiv 1912.11370](https://arxiv.org/abs/1912.11370).
    """
    arguments.class_names(class_names, num_classes)
    given = {"stages": stages, "width_factor": width_factor}
    checkpoint = None if weights is None else Checkpoint(local_path(weights, f"BiT{variant}"))
    config = BiTConfig.from_variant(
        variant,
        image_size=image_size,
        in_channels=in_channels,
        num_classes=num_classes,
        pool_padding=pool_padding,
        classifier_activation=classifier_activation,
        preprocessing=preprocessing_of(
            checkpoint,
            preprocessing,
            in_channels,
            mean=mean,
            std=std,
            interpolation=interpolation,
            crop_fraction=crop_fraction,
        ),
        class_names=class_names,
        **{name: value for name, value in given.items() if value is not None},
    )
    inputs = keras.Input((*config.image_size, config.in_channels), name="images")
    x = layers.ImageNormalization(apply=include_preprocessing, config=config, name="normalization")(inputs)
    x = bit_body(x, config.stages, config.width_factor, config.pool_padding)
    x = keras.layers.GlobalAveragePooling2D(data_format="channels_last", dtype="float32", name="pooling")(x)
    if config.num_classes:
        options = {"activation": config.classifier_activation, "kernel_initializer": head_init, "dtype": "float32"}
        x = keras.layers.Dense(config.num_classes, name="head", **options)(x)
    model = BigTransfer(inputs, x, name=name or "bit_" + variant)
    if checkpoint is not None:
        load_checkpoint(model, checkpoint).log()
    return model
