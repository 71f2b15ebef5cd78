import math

from keras import ops

from keras_vit import arguments
from keras_vit.layers import initializers
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.dense import Dense


class Tokenizer(CompositeLayer):
    """Base of layers that pool the pixels of a feature map into visual tokens by a softmax over all pixels.

    Args:
        token_dim: Int, the width of a token. None: that of the feature map. Another width takes a projection of the
            pooled tokens.
    """

    def __init__(self, token_dim=None, **kwargs):
        super().__init__(**kwargs)
        self.token_dim = arguments.optional(arguments.positive_int, "token_dim", token_dim)
        self.value = None

    def build_value(self, channels):
        """Builds the projection of the tokens if they are not as wide as the feature map."""
        if self.token_dim not in (None, channels):
            self.value = projection("value", channels, self.token_dim, **self.inherited)

    def dense_layers(self):
        return () if self.value is None else (self.value,)

    def pool(self, feature_map, scores, return_attention_scores):
        """Returns the tokens for scores of all pixels, (batch, num_tokens, height * width)."""
        weights = weights_of(scores, self.compute_dtype)
        tokens = ops.matmul(weights, flat(feature_map))
        if self.value is not None:
            tokens = self.value(tokens)
        if not return_attention_scores:
            return tokens
        _, num_tokens, _ = weights.shape
        return tokens, ops.reshape(weights, (-1, num_tokens, *ops.shape(feature_map)[1:3]))

    def compute_output_spec(self, feature_map, *tokens, return_attention_scores=False):
        batch, num_tokens, _ = shape = self.compute_output_shape(feature_map.shape, *(x.shape for x in tokens))
        scores = [(batch, num_tokens, *feature_map.shape[1:3])] if return_attention_scores else []
        return self.spec(shape, *scores)


def projection(name, inputs, outputs, scale=1.0, **options):
    """Returns a built dense layer without bias, initialized as PyTorch's linear layers, times `scale`."""
    limit = scale / math.sqrt(inputs)
    kernel = initializers.RandomUniform(-limit, limit)
    layer = Dense(outputs, use_bias=False, kernel_initializer=kernel, name=name, **options)
    layer.build((None, None, inputs))
    return layer


def flat(feature_map):
    """Returns the pixels of a feature map, (batch, height * width, channels)."""
    _, height, width, channels = ops.shape(feature_map)
    return ops.reshape(feature_map, (-1, height * width, channels))


def products(queries, keys):
    """Returns the products of queries, (batch, n, width), and keys, (batch, m, width): (batch, n, m), float32."""
    # Without a division by the root of the width, float16 could overflow.
    queries, keys = ops.cast(queries, "float32"), ops.cast(keys, "float32")
    return ops.matmul(queries, ops.transpose(keys, (0, 2, 1)))


def weights_of(scores, dtype):
    """Returns the softmax of scores over the last axis, computed in float32."""
    return ops.cast(ops.softmax(ops.cast(scores, "float32"), axis=-1), dtype)
