import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.drop_path import DropPath
from keras_vit.models.vt_resnet.tokenizer import flat, products, projection, weights_of


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenProjector(CompositeLayer):
    """Adds visual tokens T to the pixels X of a feature map: `X + softmax_L((X W_Q)(T W_K)^T) T`.

    Args:
        key_dim: Int, the width of `X W_Q` and `T W_K`. None: that of the feature map.
        drop_path_rate: Float in [0, 1), the probability of dropping the tokens' part per image.
        seed: Int or None, the random seed of the stochastic depth.

    Call arguments:
        feature_map: (batch, height, width, channels), of any height and width.
        tokens: (batch, num_tokens, token_dim). If they are not as wide as the feature map, a projection is added,
            `T W_V`.

    Returns:
        (batch, height, width, channels).

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> TokenProjector()(np.zeros((1, 14, 14, 256)), np.zeros((1, 16, 1024))).shape
    (1, 14, 14, 256)

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 3.3; `W_V` as in `FilterTokenizer`, initial
    weights as in `TokenTransformer`.
    """

    def __init__(self, key_dim=None, drop_path_rate=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.key_dim = arguments.optional(arguments.positive_int, "key_dim", key_dim)
        self.drop_path_rate = arguments.rate("drop_path_rate", drop_path_rate)
        self.seed = seed
        self.drop_path = DropPath(self.drop_path_rate, seed=seed, dtype=self.dtype_policy, name="drop_path")

    def build(self, feature_map_shape, tokens_shape):
        channels, token_dim = feature_map_shape[-1], tokens_shape[-1]
        key_dim = self.key_dim or channels
        self.query = projection("query", channels, key_dim, key_dim**-0.25, **self.inherited)
        self.key = projection("key", token_dim, key_dim, key_dim**-0.25, **self.inherited)
        self.value = None if token_dim == channels else projection("value", token_dim, channels, **self.inherited)
        self.restore_changes()

    def dense_layers(self):
        return tuple(layer for layer in (self.query, self.key, self.value) if layer is not None)

    def call(self, feature_map, tokens, training=None):
        weights = weights_of(products(self.query(flat(feature_map)), self.key(tokens)), self.compute_dtype)
        if self.value is not None:
            tokens = self.value(tokens)
        x = self.drop_path(ops.matmul(weights, tokens), training=training)
        return feature_map + ops.reshape(x, ops.shape(feature_map))

    def compute_output_shape(self, feature_map_shape, tokens_shape):
        return feature_map_shape
