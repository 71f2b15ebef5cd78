import keras
from keras import ops

from keras_vit.layers import arguments


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(keras.layers.Layer):
    """Makes one vector of a sequence: its first token, or the mean of its patches.

    Args:
        method: "token" (the first token, the class token) or "gap" (the mean over the patches, prefix tokens left out).
        num_prefix_tokens: Int, how many tokens stand before the patches.

    Call arguments:
        tokens: (batch, num_prefix_tokens + num_patches, hidden_dim).

    Returns:
        (batch, hidden_dim).

    Raises:
        ValueError: If an argument is out of its range, or the class token is asked for where there is no prefix.

    Example:

    >>> keras_vit.layers.TokenPooling("gap", num_prefix_tokens=1)(np.zeros((2, 197, 768))).shape
    (2, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), equation 4 and appendix D.3.
    """

    def __init__(self, method, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.method = arguments.one_of("method", method, ("token", "gap"))
        self.num_prefix_tokens = arguments.non_negative_int("num_prefix_tokens", num_prefix_tokens)
        if method == "token" and not self.num_prefix_tokens:
            raise ValueError('Expected at least 1 prefix token for method="token". Received: num_prefix_tokens=0')
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def call(self, tokens):
        if self.method == "token":
            return tokens[:, 0]
        # In float32: a sum of hundreds of half-precision numbers loses what the head needs.
        patches = ops.cast(tokens[:, self.num_prefix_tokens :], "float32")
        return ops.cast(ops.mean(patches, axis=1), self.compute_dtype)

    def compute_output_shape(self, tokens_shape):
        return tokens_shape[0], tokens_shape[-1]

    def get_config(self):
        return {**super().get_config(), "method": self.method, "num_prefix_tokens": self.num_prefix_tokens}
