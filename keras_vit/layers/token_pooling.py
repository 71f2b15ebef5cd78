import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import Layer


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(Layer):
    """Makes one vector of a sequence: one of its first tokens, or the mean of its patches.

    Args:
        method: "token" (one of the prefix tokens) or "gap" (the mean of the patches).
        num_prefix_tokens: Int, how many tokens stand before the patches.
        index: Int, which of them "token" takes: 0, the class token; 1, DeiT's distillation token.

    Call arguments:
        tokens: (batch, num_prefix_tokens + num_patches, hidden_dim).
        sizes: (batch, num_prefix_tokens + num_patches) or None: how many patches were merged into each token, which
            weigh as many in the mean.

    Returns:
        (batch, hidden_dim).

    Raises:
        ValueError: If the prefix does not have the token.

    Example:

    >>> keras_vit.layers.TokenPooling("gap", num_prefix_tokens=1)(np.zeros((2, 197, 768))).shape
    (2, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), equation 4 and appendix D.3.
    """

    def __init__(self, method, num_prefix_tokens=0, index=0, **kwargs):
        super().__init__(**kwargs)
        self.method = arguments.one_of("method", method, ("token", "gap"))
        self.num_prefix_tokens = arguments.non_negative_int("num_prefix_tokens", num_prefix_tokens)
        if method == "token" and not self.num_prefix_tokens:
            raise ValueError('Expected at least 1 prefix token for method="token". Received: num_prefix_tokens=0')
        self.index = arguments.non_negative_int("index", index)
        if self.index >= max(self.num_prefix_tokens, 1):
            raise ValueError(
                f"Expected `index` below the number of prefix tokens, {self.num_prefix_tokens}. Received: index={index}"
            )
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def call(self, tokens, sizes=None):
        if self.method == "token":
            return tokens[:, self.index]
        # In float32: a sum of hundreds of half-precision numbers loses what the head needs.
        patches = ops.cast(tokens[:, self.num_prefix_tokens :], "float32")
        if sizes is None:
            return ops.cast(ops.mean(patches, axis=1), self.compute_dtype)
        weights = ops.cast(sizes[:, self.num_prefix_tokens :, None], "float32")
        return ops.cast(ops.sum(patches * weights, axis=1) / ops.sum(weights, axis=1), self.compute_dtype)

    def compute_output_shape(self, tokens_shape, sizes_shape=None):
        return tokens_shape[0], tokens_shape[-1]
