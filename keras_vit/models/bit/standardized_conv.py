import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers import initializers
from keras_vit.layers.base import Layer
from keras_vit.layers.padding import pad_sides


@keras.saving.register_keras_serializable(package="keras_vit")
class StandardizedConv2D(Layer):
    """A convolution without bias whose kernel is standardized per filter, to mean 0 and standard deviation about 1.

    The kernel is standardized in float32. The defaults suit hybrids; BiT uses
    `padding="symmetric", epsilon=1e-10, epsilon_added_to="variance"`.

    With padding="same", the bottom or right side gets the extra pixel of an odd padding, as in TensorFlow. "symmetric"
    adds `kernel_size // 2` pixels on each side. If the sizes are odd, the two paddings differ only if `strides` is
    above 1. The kernel becomes `(w - mean) / (std + epsilon)` or, with `epsilon_added_to="variance"`,
    `(w - mean) / sqrt(variance + epsilon)`. Images are always channels last.

    Reference: [arXiv 1903.10520](https://arxiv.org/abs/1903.10520).
    """

    def __init__(
        self,
        filters,
        kernel_size,
        strides=1,
        padding="same",
        epsilon=1e-5,
        epsilon_added_to="std",
        kernel_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = arguments.positive_int("filters", filters)
        self.kernel_size = arguments.pair("kernel_size", kernel_size)
        self.strides = arguments.pair("strides", strides)
        self.padding = arguments.choice("padding", padding, ("same", "symmetric"))
        if padding == "symmetric" and not all(size % 2 for size in self.kernel_size):
            raise arguments.invalid("kernel_size", 'odd sizes with padding="symmetric"', kernel_size)
        self.epsilon = arguments.epsilon("epsilon", epsilon)
        self.epsilon_added_to = arguments.choice("epsilon_added_to", epsilon_added_to, ("std", "variance"))
        self.kernel_initializer = keras.initializers.get(
            initializers.LecunNormal() if kernel_initializer is None else kernel_initializer
        )
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, images_shape):
        channels = images_shape[-1]
        if channels is None:
            raise ValueError(f"Expected images with a known number of channels. Received: shape {tuple(images_shape)}")
        # No autocast, because a lower compute dtype should round the standardized kernel, not the stored one.
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.kernel_size, channels, self.filters),
            initializer=self.kernel_initializer,
            autocast=False,
        )
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: channels})

    def standardized_kernel(self):
        """Returns the standardized kernel, (height, width, channels, filters), float32."""
        kernel = ops.cast(self.kernel, "float32")
        kernel = kernel - ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
        variance = ops.mean(ops.square(kernel), axis=(0, 1, 2), keepdims=True)
        if self.epsilon_added_to == "variance":
            return kernel / ops.sqrt(variance + self.epsilon)
        # Clip the variance. The variance of a constant filter is 0, at which the square root has no finite gradient.
        return kernel / (ops.sqrt(ops.maximum(variance, 1e-24)) + self.epsilon)

    def call(self, images):
        padding = "same"
        if self.padding == "symmetric" and self.strides != (1, 1):
            vertical, horizontal = (size // 2 for size in self.kernel_size)
            if vertical or horizontal:
                images = pad_sides(images, (vertical, vertical), (horizontal, horizontal))
            padding = "valid"
        kernel = ops.cast(self.standardized_kernel(), self.compute_dtype)
        return ops.conv(images, kernel, strides=self.strides, padding=padding, data_format="channels_last")

    def compute_output_shape(self, images_shape):
        batch, *sides, _ = images_shape
        sides = (None if side is None else -(-side // stride) for side, stride in zip(sides, self.strides, strict=True))
        return batch, *sides, self.filters
