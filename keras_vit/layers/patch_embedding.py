import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers import initializers
from keras_vit.layers.dense import by_rows


def whole_patches(images, patch_size):
    """Images without the pixels at the right and bottom that fill no patch, and the grid's rows and columns."""
    _, height, width, _ = ops.shape(images)
    ph, pw = patch_size
    rows, columns = arguments.patch_grid(height, width, patch_size)
    known = isinstance(height, int) and isinstance(width, int)
    if not known or height % ph or width % pw:
        images = images[:, : rows * ph, : columns * pw]
    return images, rows, columns


def unfold(images, patch_size):
    """Cuts images into flattened patches, (batch, rows * columns, patch_height * patch_width * channels)."""
    images, rows, columns = whole_patches(images, patch_size)
    ph, pw = patch_size
    channels = images.shape[-1]
    x = ops.reshape(images, (-1, rows, ph, columns, pw, channels))
    x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
    return ops.reshape(x, (-1, rows * columns, ph * pw * channels))


@keras.saving.register_keras_serializable(package="keras_vit")
class Patches(keras.layers.Layer):
    """Cuts images into flattened patches, with no projection.

    Patches run row by row from the top left, the pixels of a patch likewise, channels last. Rows and columns of pixels
    that do not fill a patch are dropped at the bottom and right, as a VALID convolution drops them.

    Args:
        patch_size: Int, or (height, width), in pixels.

    Call arguments:
        images: Images, (batch, height, width, channels).

    Returns:
        Patches, (batch, num_patches, patch_height * patch_width * channels).

    Raises:
        ValueError: If an image is smaller than one patch.

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
        batch, height, width, channels = images_shape
        grid = arguments.patch_grid(height, width, self.patch_size)
        return batch, arguments.grid_tokens(grid), self.patch_size[0] * self.patch_size[1] * channels

    def get_config(self):
        return {**super().get_config(), "patch_size": list(self.patch_size)}


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEmbedding(keras.layers.Layer):
    """Cuts images into patches and projects each linearly, in row-major order.

    The kernel is stored as a convolution's, (patch_height, patch_width, channels, hidden_dim), as the official
    checkpoints have it.

    Args:
        hidden_dim: Int, the width of a token.
        patch_size: Int, or (height, width), in pixels. A remainder that does not fill a patch is dropped at the bottom
            and right.
        method: "conv" (a strided convolution) or "unfold" (patches, then one matrix product): the same function of the
            same kernel, so they differ in speed alone. None takes "conv" on PyTorch and "unfold" elsewhere: XLA takes
            as long for the convolution's gradient on a CPU as for half of a ViT-B/16.

    Call arguments:
        images: Images, (batch, height, width, channels).

    Returns:
        Tokens, (batch, num_patches, hidden_dim).

    Raises:
        ValueError: If an argument is out of its range or an image is smaller than one patch.

    Example:

    >>> keras_vit.layers.PatchEmbedding(768, patch_size=16)(np.zeros((1, 224, 224, 3))).shape
    (1, 196, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 3.1, equation 1. Initial weights as in the
    official Flax code: LeCun normal kernel, zero bias.
    """

    def __init__(self, hidden_dim, patch_size, method=None, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim = arguments.positive_int("hidden_dim", hidden_dim)
        self.patch_size = arguments.pair("patch_size", patch_size)
        self.method = arguments.one_of("method", method, (None, "conv", "unfold"))
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, images_shape):
        channels = images_shape[-1]
        if channels is None:
            raise ValueError(f"Expected images with a known number of channels. Received: shape {tuple(images_shape)}")
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.patch_size, channels, self.hidden_dim),
            initializer=initializers.LecunNormal(),
        )
        self.bias = self.add_weight(name="bias", shape=(self.hidden_dim,), initializer="zeros")
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: channels})

    def call(self, images):
        method = self.method or ("conv" if keras.backend.backend() == "torch" else "unfold")
        if method == "unfold":
            kernel = ops.reshape(self.kernel, (-1, self.hidden_dim))
            return by_rows(lambda patches: ops.matmul(patches, kernel) + self.bias, unfold(images, self.patch_size))
        # A VALID convolution would drop the remainder too, but TensorFlow's on a CPU computes garbage from that of some
        # images of one channel and patches one pixel high.
        images, rows, columns = whole_patches(images, self.patch_size)
        x = ops.conv(images, self.kernel, strides=self.patch_size, padding="valid", data_format="channels_last")
        return ops.reshape(x, (-1, rows * columns, self.hidden_dim)) + self.bias

    def compute_output_shape(self, images_shape):
        batch, height, width, _ = images_shape
        return batch, arguments.grid_tokens(arguments.patch_grid(height, width, self.patch_size)), self.hidden_dim

    def get_config(self):
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "patch_size": list(self.patch_size),
            "method": self.method,
        }
