import math

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import Layer
from keras_vit.layers.padding import pad_sides


@keras.saving.register_keras_serializable(package="keras_vit")
class SymmetricMaxPooling2D(Layer):
    """Max pooling with the same padding on all four sides, unlike Keras' "same" padding.

    `pool_size`, the side of a window, is odd. padding="lowest" pads with -inf, which is never the maximum, and "zeros"
    pads with 0, which may be the maximum. Images are always channels last.
    """

    def __init__(self, pool_size, strides, padding="lowest", **kwargs):
        super().__init__(**kwargs)
        self.pool_size = arguments.positive_int("pool_size", pool_size)
        if self.pool_size % 2 == 0:
            raise arguments.invalid("pool_size", "an odd number", pool_size)
        self.strides = arguments.positive_int("strides", strides)
        self.padding = arguments.choice("padding", padding, ("lowest", "zeros"))
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def call(self, images):
        side = (self.pool_size // 2,) * 2
        value = 0.0 if self.padding == "zeros" else -math.inf
        if keras.backend.backend() != "torch":
            # TensorFlow's max pooling ignores NaN on CPUs. Replace NaN by infinity, which stays in the output.
            images = ops.where(ops.isnan(images), math.inf, images)
        images = pad_sides(images, side, side, value)
        return ops.max_pool(images, self.pool_size, self.strides, padding="valid", data_format="channels_last")

    def compute_output_shape(self, images_shape):
        batch, *sides, channels = images_shape
        return batch, *(None if side is None else -(-side // self.strides) for side in sides), channels
