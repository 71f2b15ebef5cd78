import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import Layer


@keras.saving.register_keras_serializable(package="keras_vit")
class GroupNormalization(Layer):
    """Group normalization over the whole image, with a scale and an offset per channel.

    The variance is computed from centred values, in float32. On PyTorch, `keras.layers.GroupNormalization` loses
    precision, and may return NaN, if the mean is far above the standard deviation.

    `call` ignores `show_nan`. It is accepted because files of version 0.2 contain it.

    Reference: [arXiv 1803.08494](https://arxiv.org/abs/1803.08494).
    """

    def __init__(self, groups=32, epsilon=1e-6, gamma_initializer="ones", **kwargs):
        super().__init__(**kwargs)
        self.groups = arguments.positive_int("groups", groups)
        self.epsilon = arguments.epsilon("epsilon", epsilon)
        self.gamma_initializer = keras.initializers.get(gamma_initializer)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, images_shape):
        channels = images_shape[-1]
        if channels is None or channels % self.groups:
            raise ValueError(
                f"Expected a number of channels that is a multiple of {self.groups}, the number of groups. "
                f"Received: shape {tuple(images_shape)}"
            )
        # No autocast, because `call` uses these weights in float32.
        self.gamma = self.add_weight(
            name="gamma", shape=(channels,), initializer=self.gamma_initializer, autocast=False
        )
        self.beta = self.add_weight(name="beta", shape=(channels,), initializer="zeros", autocast=False)
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: channels})

    def call(self, images, show_nan=None):
        _, height, width, channels = ops.shape(images)
        group_shape = (self.groups, channels // self.groups)
        x = ops.reshape(ops.cast(images, "float32"), (-1, height * width, *group_shape))
        x = x - ops.mean(x, axis=(1, 3), keepdims=True)
        variance = ops.mean(ops.square(x), axis=(1, 3), keepdims=True)
        gamma, beta = (ops.reshape(ops.cast(w, "float32"), group_shape) for w in (self.gamma, self.beta))
        x = x * (ops.rsqrt(variance + self.epsilon) * gamma) + beta
        return ops.cast(ops.reshape(x, (-1, height, width, channels)), self.compute_dtype)
