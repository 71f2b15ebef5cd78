import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers import initializers
from keras_vit.layers.base import Layer


@keras.saving.register_keras_serializable(package="keras_vit")
class StandardizedConv2D(Layer):
    """A convolution without bias whose kernel is standardized, for each filter, before it is used.

    The kernel's mean is 0 and its standard deviation about 1 over height, width and input channels. They are computed
    in float32 under any dtype policy, from the kernel as it is stored. Two conventions exist: the hybrids' is the
    default; BiT's is `padding="symmetric", epsilon=1e-10, epsilon_added_to="variance"`.

    Args:
        filters: Int, the number of output channels.
        kernel_size: Int, or (height, width), in pixels.
        strides: Int, or (vertical, horizontal), in pixels.
        padding: "same" (TensorFlow's: what the strides need, the odd pixel at the bottom and right) or "symmetric"
            (half the kernel on each side, whatever the strides, for kernels of odd sizes). They differ only where
            `strides` is above 1.
        epsilon: Float, what keeps the division from zero.
        epsilon_added_to: "std", `(w - mean) / (std + epsilon)`, or "variance", `(w - mean) / sqrt(variance + epsilon)`.
        kernel_initializer: Initializer of the kernel. None: LeCun normal, which a seed draws alike on each backend.

    Call arguments:
        images: Images or feature maps, (batch, height, width, channels), channels last whatever
            `keras.config.image_data_format()` says.

    Returns:
        (batch, ceil(height / strides), ceil(width / strides), filters).

    Example:

    >>> keras_vit.layers.StandardizedConv2D(64, kernel_size=7, strides=2)(np.zeros((1, 224, 224, 3))).shape
    (1, 112, 112, 64)

    Reference: [arXiv 1903.10520](https://arxiv.org/abs/1903.10520). Initial weights as in the official Flax code: LeCun
    normal.
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
        self.padding = arguments.one_of("padding", padding, ("same", "symmetric"))
        if padding == "symmetric" and not all(size % 2 for size in self.kernel_size):
            raise arguments.invalid("kernel_size", 'odd sizes with padding="symmetric"', kernel_size)
        self.epsilon = arguments.positive_number("epsilon", epsilon)
        self.epsilon_added_to = arguments.one_of("epsilon_added_to", epsilon_added_to, ("std", "variance"))
        self.kernel_initializer = keras.initializers.get(
            initializers.LecunNormal() if kernel_initializer is None else kernel_initializer
        )
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, images_shape):
        channels = images_shape[-1]
        if channels is None:
            raise ValueError(f"Expected images with a known number of channels. Received: shape {tuple(images_shape)}")
        # Without autocast, so that a reduced compute dtype rounds the standardized kernel and not the stored one.
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.kernel_size, channels, self.filters),
            initializer=self.kernel_initializer,
            autocast=False,
        )
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: channels})

    def standardized_kernel(self):
        """The kernel that convolves, (height, width, channels, filters), in float32."""
        kernel = ops.cast(self.kernel, "float32")
        kernel = kernel - ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
        variance = ops.mean(ops.square(kernel), axis=(0, 1, 2), keepdims=True)
        if self.epsilon_added_to == "variance":
            return kernel / ops.sqrt(variance + self.epsilon)
        # A constant filter has no variance, and the root of zero no gradient. The bound is far below any epsilon.
        return kernel / (ops.sqrt(ops.maximum(variance, 1e-24)) + self.epsilon)

    def call(self, images):
        padding = "same"
        if self.padding == "symmetric" and self.strides != (1, 1):
            vertical, horizontal = (size // 2 for size in self.kernel_size)
            if vertical or horizontal:
                images = ops.pad(images, ((0, 0), (vertical, vertical), (horizontal, horizontal), (0, 0)))
            padding = "valid"
        kernel = ops.cast(self.standardized_kernel(), self.compute_dtype)
        return ops.conv(images, kernel, strides=self.strides, padding=padding, data_format="channels_last")

    def compute_output_shape(self, images_shape):
        batch, *sides, _ = images_shape
        sides = (None if side is None else -(-side // stride) for side, stride in zip(sides, self.strides, strict=True))
        return batch, *sides, self.filters
