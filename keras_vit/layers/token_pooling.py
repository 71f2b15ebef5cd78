import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import Layer


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(Layer):
    """Returns one vector per image: a prefix token, the mean of the patch tokens, or both concatenated.

    Args:
        method: "token" (a prefix token), "gap" (the mean of the patches) or "token_gap" (both, concatenated).
        num_prefix_tokens: Int, the number of tokens before the patches.
        index: Int below `num_prefix_tokens`, the prefix token: 0 is the class token, 1 is DeiT's distillation token.

    Call arguments:
        tokens: (batch, num_prefix_tokens + num_patches, hidden_dim).
        sizes: (batch, num_prefix_tokens + num_patches) or None, the number of patches merged into each token. It is
            the weight of the token in the mean.

    Raises:
        ValueError: If `index` is not below `num_prefix_tokens`. With method="gap" and no prefix tokens, index=0 is
            valid.

    Example:
    >>> keras_vit.layers.TokenPooling("gap", num_prefix_tokens=1)(np.zeros((2, 197, 768))).shape
    (2, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), equation 4 and appendix D.3.
    """

    def __init__(self, method, num_prefix_tokens=0, index=0, **kwargs):
        super().__init__(**kwargs)
        self.method = arguments.choice("method", method, ("token", "gap", "token_gap"))
        self.num_prefix_tokens = arguments.non_negative_int("num_prefix_tokens", num_prefix_tokens)
        if method != "gap" and not self.num_prefix_tokens:
            raise ValueError(f"Expected at least 1 prefix token for {method=}. Received: num_prefix_tokens=0")
        self.index = arguments.non_negative_int("index", index)
        if self.index >= max(self.num_prefix_tokens, 1):
            expected = f"Expected `index` less than the number of prefix tokens, {self.num_prefix_tokens}"
            raise ValueError(f"{expected}. Received: index={index}")
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, tokens_shape, sizes_shape=None):
        """Adds no weights."""

    def call(self, tokens, sizes=None):
        if self.method == "token":
            return tokens[:, self.index]
        # Compute the mean in float32, because the sum of hundreds of numbers is too inexact in half precision.
        patches = ops.cast(tokens[:, self.num_prefix_tokens :], "float32")
        if sizes is None:
            mean = ops.mean(patches, axis=1)
        else:
            weights = ops.cast(sizes[:, self.num_prefix_tokens :, None], "float32")
            mean = ops.sum(patches * weights, axis=1) / ops.sum(weights, axis=1)
        mean = ops.cast(mean, self.compute_dtype)
        return mean if self.method == "gap" else ops.concatenate([tokens[:, self.index], mean], axis=-1)

    def compute_output_shape(self, tokens_shape, sizes_shape=None):
        return tokens_shape[0], tokens_shape[-1] * (2 if self.method == "token_gap" else 1)
