import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import Layer


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchDropout(Layer):
    """Removes random patches of each image in training. The other patches keep their order and values.

    Args:
        rate: Float in [0, 1), the share of patches to remove; at least one patch stays.
        num_prefix_tokens: Int, the number of tokens before the patches. These tokens always stay.
        seed: Int or None, the random seed.

    Input shape: (batch, num_prefix_tokens + num_patches, hidden_dim). The output has fewer patches in training.

    Example:
    >>> layer = keras_vit.layers.PatchDropout(0.5, num_prefix_tokens=1)
    >>> layer(np.zeros((2, 197, 768)), training=True).shape
    (2, 99, 768)

    Reference: [arXiv 2208.07220](https://arxiv.org/abs/2208.07220).
    """

    def __init__(self, rate, num_prefix_tokens=0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.rate = arguments.rate("rate", rate)
        self.num_prefix_tokens = arguments.non_negative_int("num_prefix_tokens", num_prefix_tokens)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(arguments.seeds(seed, 1)[0])

    def call(self, tokens, training=None):
        if not training or self.rate == 0:
            return tokens
        batch, length, _ = ops.shape(tokens)
        num_patches = length - self.num_prefix_tokens
        # Add 0.001 before rounding down, because 10 * (1 - 0.8) is slightly less than 2 in floating point.
        if isinstance(num_patches, int):
            num_kept = max(1, int(num_patches * (1 - self.rate) + 1e-3))
        else:
            num_kept = ops.cast(ops.cast(num_patches, "float32") * (1 - self.rate) + 1e-3, "int32")
            num_kept = ops.maximum(1, num_kept)
        if keras.backend.backend() == "torch" and self.seed is None:
            # PyTorch cannot compile Keras' seed generator, so draw from PyTorch's own generator.
            import torch  # noqa: TID251

            noise = torch.rand((batch, num_patches), device=tokens.device)
        else:
            noise = keras.random.uniform((batch, num_patches), seed=self.seed_generator)
        kept = ops.sort(ops.argsort(noise, axis=1)[:, :num_kept], axis=1)
        patches = ops.take_along_axis(tokens[:, self.num_prefix_tokens :], kept[:, :, None], axis=1)
        return ops.concatenate([tokens[:, : self.num_prefix_tokens], patches], axis=1)

    def cost_steps(self, tokens_shape, **call_arguments):
        return []  # Inference returns the input unchanged.

    def compute_output_shape(self, tokens_shape):
        # The number of output tokens is unknown, because it depends on `training`.
        batch, _, hidden_dim = tokens_shape
        return batch, None, hidden_dim
