"""Layers that halve feature maps: pooling, and strided convolutions padded as in TensorFlow or PyTorch."""

import math

import keras
from keras import ops

from keras_vit.layers.initializers import FanOutNormal
from keras_vit.layers.padding import pad_sides
from keras_vit.layers.symmetric_max_pooling import SymmetricMaxPooling2D


@keras.saving.register_keras_serializable(package="keras_vit")
class MaxPooling2D(keras.layers.MaxPooling2D):
    """`keras.layers.MaxPooling2D` for padding "same" and images of (batch, height, width, channels).

    On PyTorch, this class pads the images itself, with -inf. Keras' own padding fails if PyTorch compiles its gradient.
    """

    def call(self, images):
        if keras.backend.backend() != "torch":
            return super().call(images)
        sides = []
        for size, window, stride in zip(images.shape[1:3], self.pool_size, self.strides, strict=True):
            total = max(window - (size % stride or stride), 0)
            sides.append((total // 2, total - total // 2))
        images = pad_sides(images, *sides, value=-math.inf)
        return ops.max_pool(images, self.pool_size, self.strides, padding="valid", data_format="channels_last")


def pooling(pool_type, padding, name, dtype):
    """Returns a pooling layer that halves height and width, rounded up.

    `pool_type` is "max2" or "avg2", with windows of 2 x 2, or "max3", with windows of 3 x 3.
    """
    options = {"name": name, "dtype": dtype}
    if pool_type == "max3" and padding == "symmetric":
        return SymmetricMaxPooling2D(3, 2, **options)
    kind = keras.layers.AveragePooling2D if pool_type == "avg2" else keras.layers.MaxPooling2D
    # Windows of 3 x 3 with symmetric padding are handled above. For windows of 2 x 2, Keras' "same" is used for both
    # kinds of padding: it pads only the end of an odd side, and averages exclude the padding.
    return kind(int(pool_type[-1]), 2, padding="same", data_format="channels_last", **options)


def conv(kind, kernel_size, strides, padding, **options):
    """Returns a convolution layer of class `kind`, normal or depthwise, without bias.

    If the padding is symmetric and `strides` is above 1, the layer itself does not pad. Call the layer with `convolve`,
    or pad its input first.
    """
    depthwise = kind is keras.layers.DepthwiseConv2D
    options[f"{'depthwise' if depthwise else 'kernel'}_initializer"] = FanOutNormal()
    options["padding"] = "valid" if strides > 1 and padding == "symmetric" else "same"
    return kind(kernel_size=kernel_size, strides=strides, data_format="channels_last", use_bias=False, **options)


def convolve(layer, images):
    """Calls a layer that `conv` returned. If the layer has symmetric padding, first pads all four sides equally."""
    if layer.padding == "valid":
        side = (layer.kernel_size[0] // 2,) * 2
        images = pad_sides(images, side, side)
    return layer(images)
