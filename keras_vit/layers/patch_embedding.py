import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers import initializers, kernels
from keras_vit.layers.base import Layer


def whole_patches(images, patch_size):
    """Crops images at the right and bottom to whole patches. Returns (images, rows of patches, columns of patches)."""
    sides = ops.shape(images)[1:3]
    rows, columns = arguments.grid_size(sides, patch_size)
    if any(not isinstance(side, int) or side % patch for side, patch in zip(sides, patch_size, strict=True)):
        images = images[:, : rows * patch_size[0], : columns * patch_size[1]]
    return images, rows, columns


def unfold(images, patch_size):
    """Cuts images into flattened patches, (batch, rows * columns, patch_height * patch_width * channels)."""
    images, rows, columns = whole_patches(images, patch_size)
    ph, pw = patch_size
    # The pixels in one row of a patch, with their channels, are contiguous in memory. So treat them as one axis.
    width = pw * images.shape[-1]
    x = ops.transpose(ops.reshape(images, (-1, rows, ph, columns, width)), (0, 1, 3, 2, 4))
    return ops.reshape(x, (-1, rows * columns, ph * width))


@keras.saving.register_keras_serializable(package="keras_vit")
class Patches(Layer):
    """Cuts images into flattened patches, without a projection.

    The patches of an image are in row-major order, and so are the pixels of a patch, with channels last. Pixels at the
    bottom and right that do not fill a patch are dropped. An image that is smaller than one patch raises a ValueError.

    Args:
        patch_size: Int, or (height, width), in pixels.

    Input shape: (batch, height, width, channels).
    Output shape: (batch, num_patches, patch_height * patch_width * channels).

    Example:
    >>> keras_vit.layers.Patches(16)(np.zeros((1, 224, 224, 3))).shape
    (1, 196, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 3.1.
    """

    def __init__(self, patch_size, **kwargs):
        super().__init__(**kwargs)
        self.patch_size = arguments.pair("patch_size", patch_size)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def call(self, images):
        return unfold(images, self.patch_size)

    def compute_output_shape(self, images_shape):
        batch, *image_size, channels = images_shape
        num_patches = arguments.num_patches(arguments.grid_size(image_size, self.patch_size))
        return batch, num_patches, self.patch_size[0] * self.patch_size[1] * channels


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEmbedding(Layer):
    """Cuts images into patches, as `Patches` does, and projects each patch linearly to a token.

    Args:
        hidden_dim: Int, the width of a token.
        patch_size: Int, or (height, width), in pixels.
        method: "unfold" (flattened patches, then a matrix product) or "conv" (a strided convolution). Both
            give the same result, but "conv" is slower on CPUs.
        use_bias: Bool, whether the projection has a bias.

    Input shape: (batch, height, width, channels). Output shape: (batch, num_patches, hidden_dim).

    Raises:
        ValueError: If an image is smaller than one patch.

    Example:
    >>> keras_vit.layers.PatchEmbedding(768, patch_size=16)(np.zeros((1, 224, 224, 3))).shape
    (1, 196, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 3.1. As in the official
    Flax code, the kernel is (patch_height, patch_width, channels, hidden_dim), LeCun normal, and the bias is zero.
    """

    def __init__(self, hidden_dim, patch_size, method="unfold", use_bias=True, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim = arguments.positive_int("hidden_dim", hidden_dim)
        self.patch_size = arguments.pair("patch_size", patch_size)
        self.method = arguments.choice("method", method, ("unfold", "conv"))
        self.set_booleans(use_bias=use_bias)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, images_shape):
        channels = images_shape[-1]
        if channels is None:
            raise ValueError(f"Expected images with a known number of channels. Received: shape {tuple(images_shape)}")
        shape = (*self.patch_size, channels, self.hidden_dim)
        self.kernel = self.add_weight(shape, initializers.LecunNormal(), name="kernel")
        self.bias = self.add_weight(shape[-1:], "zeros", name="bias") if self.use_bias else None
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: channels})

    def call(self, images):
        if self.method == "unfold":
            kernel = ops.reshape(self.kernel, (-1, self.hidden_dim))
            return kernels.dense(unfold(images, self.patch_size), kernel, self.bias)
        # Crop first. If pixels are left over, TensorFlow's VALID convolution on CPUs may return wrong results for 1
        # channel and patches 1 pixel high.
        images, rows, columns = whole_patches(ops.cast(images, self.compute_dtype), self.patch_size)
        x = ops.conv(images, self.kernel, strides=self.patch_size, padding="valid", data_format="channels_last")
        x = ops.reshape(x, (-1, rows * columns, self.hidden_dim))
        return x if self.bias is None else x + self.bias

    def compute_output_shape(self, images_shape):
        batch, *image_size, _ = images_shape
        return batch, arguments.num_patches(arguments.grid_size(image_size, self.patch_size)), self.hidden_dim
