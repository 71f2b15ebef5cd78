import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import Layer


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchMap(Layer):
    """Drops prefix tokens and reshapes patch tokens to a feature map, (batch, rows, columns, hidden_dim).

    Args:
        patch_size: Int, or (height, width), in pixels.
        num_prefix_tokens: Int, the number of tokens before the patches. These tokens are dropped.

    Call arguments:
        tokens: (batch, num_prefix_tokens + rows * columns, hidden_dim).
        images: (batch, height, width, channels), the images that the patches are from. Only their size is read.

    Example:
    >>> layer = keras_vit.layers.PatchMap(16, num_prefix_tokens=1)
    >>> layer(np.zeros((1, 197, 768)), np.zeros((1, 224, 224, 3))).shape
    (1, 14, 14, 768)
    """

    def __init__(self, patch_size, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.patch_size = arguments.pair("patch_size", patch_size)
        self.num_prefix_tokens = arguments.non_negative_int("num_prefix_tokens", num_prefix_tokens)

    def build(self, tokens_shape, images_shape):
        arguments.grid_size(images_shape[1:3], self.patch_size)

    def call(self, tokens, images):
        batch, *image_size, _ = ops.shape(images)
        # Pass the batch size instead of -1. With -1, a wrong number of tokens may not raise an error.
        shape = (batch, *arguments.grid_size(image_size, self.patch_size), tokens.shape[-1])
        return ops.reshape(tokens[:, self.num_prefix_tokens :], shape)

    def compute_output_shape(self, tokens_shape, images_shape):
        return tokens_shape[0], *arguments.grid_size(images_shape[1:3], self.patch_size), tokens_shape[-1]
