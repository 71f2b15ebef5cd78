"""ResNets of standardized convolutions, as the stem of a hybrid and as the body of a BiT model."""

import logging

import keras

from keras_vit import arguments, layers
from keras_vit.layers.bottleneck import CONV_OPTIONS, NORM_OPTIONS
from keras_vit.variants import ROOT_WIDTH

logger = logging.getLogger("keras_vit")


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


def stage_sizes(stages):
    """Returns `stages` as a tuple of ints, or raises if it is not the number of units of each stage."""
    if not isinstance(stages, (tuple, list)):
        raise ValueError(
            "Invalid value received for argument `stages`. Expected the number of units of each stage, as in "
            f"(3, 4, 9). Received: {stages!r}"
        )
    return tuple(arguments.positive_int("stages", num_units) for num_units in stages)


def total_stride(stages):
    """By how much a ResNet reduces images: fourfold by the root, twofold by each stage but the first."""
    return 4 * 2 ** max(len(stages) - 1, 0)


def token_grid(image_size, stages, patch_size):
    """Rows and columns of whole patches in the feature map of images of a known size.

    Args:
        image_size: (height, width) in pixels.
        stages: The number of units of each stage; None where there is no ResNet and patches are cut out of the images.
        patch_size: (height, width) in pixels of the feature map.

    Returns:
        (rows, columns).

    Raises:
        ValueError: If the images are smaller than one patch.
    """
    stride = 1 if stages is None else total_stride(stages)
    smallest = [(patch - 1) * stride + 1 for patch in patch_size]
    if image_size[0] < smallest[0] or image_size[1] < smallest[1]:
        raise ValueError(
            f"Expected images of at least one patch, {smallest[0]} x {smallest[1]} pixels. "
            f"Received: images of {image_size[0]} x {image_size[1]} pixels."
        )
    return tuple(-(-side // stride) // patch for side, patch in zip(image_size, patch_size, strict=True))


def warn_of_dropped_pixels(image_size, grid_size, stages, patch_size):
    """Says which pixels are left over by the patches of a grid, as `token_grid` returns it."""
    stride = 1 if stages is None else total_stride(stages)
    used = [count * patch * stride for count, patch in zip(grid_size, patch_size, strict=True)]
    if any(pixels < side for pixels, side in zip(used, image_size, strict=True)):
        logger.warning(
            "Patches of %d x %d pixels do not divide images of %d x %d: the model sees the upper left %d x %d.",
            *(patch * stride for patch in patch_size),
            *image_size,
            *map(min, used, image_size),
        )


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
    width = ROOT_WIDTH * arguments.positive_number("width_factor", width_factor)
    if width % 32:
        raise ValueError(
            "Invalid value received for argument `width_factor`. Expected a multiple of 0.5, since the norms have 32 "
            f"groups. Received: {width_factor!r}"
        )
    return int(width)
