import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.drop_path import DropPath
from keras_vit.models.vt_resnet.tokenizer import products, projection, weights_of


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenTransformer(CompositeLayer):
    """The transformer of a VT module: `T' = T + softmax_L((T K)(T Q)^T) T`, then `T' + relu(T' F1) F2`.

    One head, without norms, values, biases or a division by the root of `key_dim`.

    Args:
        key_dim: Int, the width of `T K` and `T Q`. None: that of the tokens.
        drop_path_rate: Float in [0, 1), the probability of dropping a residual branch per image.
        seed: Int or None, the random seed of the stochastic depth.

    Input and output shape: (batch, num_tokens, token_dim).

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> TokenTransformer(key_dim=128)(np.zeros((1, 16, 256))).shape
    (1, 16, 256)

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 3.2. Its appendix has several heads, values
    and grouped convolutions instead, and no shape of `K` and `Q` agrees with all of its tables. Initialized as
    PyTorch's linear layers; `K` and `Q` are divided by the fourth root of `key_dim` each, so that the first scores are
    as large as those of scaled attention.
    """

    def __init__(self, key_dim=None, drop_path_rate=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.key_dim = arguments.optional(arguments.positive_int, "key_dim", key_dim)
        self.drop_path_rate = arguments.rate("drop_path_rate", drop_path_rate)
        self.seed = seed
        self.drop_path_1, self.drop_path_2 = (
            DropPath(self.drop_path_rate, seed=s, dtype=self.dtype_policy, name=f"drop_path_{i}")
            for i, s in enumerate(arguments.seeds(seed, 2), start=1)
        )
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, tokens_shape):
        token_dim = tokens_shape[-1]
        key_dim = self.key_dim or token_dim
        self.key = projection("key", token_dim, key_dim, key_dim**-0.25, **self.inherited)
        self.query = projection("query", token_dim, key_dim, key_dim**-0.25, **self.inherited)
        self.dense_1 = projection("dense_1", token_dim, token_dim, **self.inherited)
        self.dense_2 = projection("dense_2", token_dim, token_dim, **self.inherited)
        self.restore_changes()

    def dense_layers(self):
        return self.key, self.query, self.dense_1, self.dense_2

    def call(self, tokens, training=None):
        weights = weights_of(products(self.key(tokens), self.query(tokens)), self.compute_dtype)
        tokens = tokens + self.drop_path_1(ops.matmul(weights, tokens), training=training)
        x = self.dense_2(ops.relu(self.dense_1(tokens)))
        return tokens + self.drop_path_2(x, training=training)
