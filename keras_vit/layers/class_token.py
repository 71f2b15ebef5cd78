import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import Layer


@keras.saving.register_keras_serializable(package="keras_vit")
class PrefixTokens(Layer):
    """Prepends learned tokens to the patches: class, distillation or register tokens. All images get the same tokens.

    Reference: [arXiv 2309.16588](https://arxiv.org/abs/2309.16588) for registers.
    """

    def __init__(self, num_tokens, initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        self.num_tokens = arguments.positive_int("num_tokens", num_tokens)
        self.initializer = keras.initializers.get(initializer)
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, tokens_shape):
        self.tokens = self.add_weight((1, self.num_tokens, tokens_shape[-1]), self.initializer, name="tokens")

    def call(self, tokens):
        batch = ops.shape(tokens)[0]
        prefix = ops.broadcast_to(ops.convert_to_tensor(self.tokens), (batch, self.num_tokens, tokens.shape[-1]))
        return ops.concatenate([prefix, tokens], axis=1)

    def compute_output_shape(self, tokens_shape):
        batch, length, hidden_dim = tokens_shape
        return batch, None if length is None else self.num_tokens + length, hidden_dim


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(PrefixTokens):
    """Prepends the class token, a learned vector that is the same for every image.

    Args:
        initializer: Initializer of the token. The default is zeros, as in the official Flax code.

    Example:
    >>> keras_vit.layers.ClassToken()(np.zeros((2, 196, 768))).shape
    (2, 197, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 3.1.
    """

    def __init__(self, initializer="zeros", **kwargs):
        super().__init__(num_tokens=1, initializer=initializer, **kwargs)

    def get_config(self):
        config = super().get_config()
        del config["num_tokens"]
        return config
