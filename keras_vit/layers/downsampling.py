"""Layers that halve feature maps: pooling, and strided convolutions padded as in TensorFlow or PyTorch."""

import keras
from keras import ops

from keras_vit.layers.initializers import FanOutNormal
from keras_vit.layers.symmetric_max_pooling import SymmetricMaxPooling2D


def pooling(pool_type, padding, name, dtype):
    """Returns the layer that halves height and width, rounded up: "max2", "max3" (3 x 3 windows) or "avg2"."""
    options = {"name": name, "dtype": dtype}
    if pool_type == "max3" and padding == "symmetric":
        return SymmetricMaxPooling2D(3, 2, **options)
    kind = keras.layers.AveragePooling2D if pool_type == "avg2" else keras.layers.MaxPooling2D
    # Windows of 2 have padding only at the end of an odd side, and averages exclude it.
    return kind(int(pool_type[-1]), 2, padding="same", data_format="channels_last", **options)


def conv(kind, kernel_size, strides, padding, **options):
    """Returns a (depthwise) convolution layer of class `kind`, without bias. `convolve` calls it."""
    depthwise = kind is keras.layers.DepthwiseConv2D
    options[f"{'depthwise' if depthwise else 'kernel'}_initializer"] = FanOutNormal()
    options["padding"] = "valid" if strides > 1 and padding == "symmetric" else "same"
    return kind(kernel_size=kernel_size, strides=strides, data_format="channels_last", use_bias=False, **options)


def convolve(layer, images):
    """Calls a layer from `conv`. If its padding is symmetric, pads all four sides equally before."""
    if layer.padding == "valid":
        side = (layer.kernel_size[0] // 2,) * 2
        images = ops.pad(images, ((0, 0), side, side, (0, 0)))
    return layer(images)
