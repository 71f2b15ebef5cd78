import math

import keras
from keras import ops

from keras_vit import activations, arguments
from keras_vit.layers import initializers
from keras_vit.layers.attention import head_width
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.mlp import MLP


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(CompositeLayer):
    """Multi-head attention pooling (MAP): pools the tokens of each image to one vector.

    A learned query attends to the tokens. A residual MLP follows the attention. The output is (batch, hidden_dim).

    Args:
        num_heads: Int, the number of attention heads.
        mlp_dim: Int, the hidden width of the MLP.
        activation: As in `MLP`.
        layer_norm_epsilon: Float, the epsilon of the norm before the MLP.
        num_prefix_tokens: Int, the number of tokens before the patches. These tokens are not pooled.

    Call arguments:
        tokens: (batch, num_tokens, hidden_dim).
        sizes: As in `MultiHeadSelfAttention`.
        return_attention_scores: Bool, whether to return the query's attention weights too, (batch, num_heads, 1,
            num_tokens - num_prefix_tokens).

    Example:
    >>> keras_vit.layers.AttentionPooling(num_heads=12, mlp_dim=3072)(np.zeros((2, 196, 768))).shape
    (2, 768)

    Reference: [arXiv 2106.04560](https://arxiv.org/abs/2106.04560), section 3.2. Initialized as in big_vision.
    """

    def __init__(
        self, num_heads, mlp_dim, activation="gelu_tanh", layer_norm_epsilon=1e-6, num_prefix_tokens=0, **kwargs
    ):
        super().__init__(**kwargs)
        self.num_heads = arguments.positive_int("num_heads", num_heads)
        self.mlp_dim = arguments.positive_int("mlp_dim", mlp_dim)
        self.activation = activations.get(activation)
        self.layer_norm_epsilon = arguments.epsilon("layer_norm_epsilon", layer_norm_epsilon)
        self.num_prefix_tokens = arguments.non_negative_int("num_prefix_tokens", num_prefix_tokens)
        self.norm = LayerNorm(epsilon=layer_norm_epsilon, name="norm", **self.inherited)
        self.mlp = MLP(mlp_dim, activation=activation, name="mlp", **self.inherited)
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, tokens_shape, sizes_shape=None):
        batch, _, hidden_dim = tokens_shape
        head_dim = head_width(hidden_dim, self.num_heads)
        probe_shape = (batch, 1, hidden_dim)
        self.probe = self.add_weight((1, 1, hidden_dim), initializers.xavier_uniform(1, hidden_dim), name="probe")
        options = {"kernel_initializer": initializers.xavier_uniform(hidden_dim, self.num_heads * head_dim)}
        options |= {"dtype": self.dtype_policy, "name": "attention"}
        self.attention = keras.layers.MultiHeadAttention(self.num_heads, head_dim, **options)
        self.attention.build(probe_shape, tokens_shape)
        # `keras.layers.MultiHeadAttention` does not pass `trainable` to its inner layers, so freeze them here.
        if not self.trainable:
            self.attention.trainable = False
        self.norm.build(probe_shape)
        self.mlp.build(probe_shape)
        self.restore_changes()

    def dense_layers(self):
        attention = self.attention
        projections = (attention.query_dense, attention.key_dense, attention.value_dense, attention.output_dense)
        return *projections, *self.mlp.dense_layers()

    def call(self, tokens, sizes=None, return_attention_scores=False):
        batch, _, hidden_dim = ops.shape(tokens)
        tokens = tokens[:, self.num_prefix_tokens :]
        probe = ops.broadcast_to(ops.convert_to_tensor(self.probe), (batch, 1, hidden_dim))
        # `keras.layers.MultiHeadAttention` cannot add a bias to the scores, so compute the attention here.
        query = self.attention.query_dense(probe) / math.sqrt(self.attention.key_dim)
        key, value = self.attention.key_dense(tokens), self.attention.value_dense(tokens)
        scores = ops.cast(ops.einsum("bqhd,bkhd->bhqk", query, key), "float32")
        if sizes is not None:
            scores = scores + ops.log(ops.cast(sizes[:, self.num_prefix_tokens :], "float32"))[:, None, None, :]
        scores = ops.cast(ops.softmax(scores, axis=-1), self.compute_dtype)
        x = self.attention.output_dense(ops.einsum("bhqk,bkhd->bqhd", scores, value))
        x = (x + self.mlp(self.norm(x)))[:, 0]
        return (x, scores) if return_attention_scores else x

    def cost_steps(self, tokens_shape, **call_arguments):
        tokens, hidden_dim = tokens_shape[1] - self.num_prefix_tokens, tokens_shape[2]
        width = self.num_heads * self.attention.key_dim
        return [
            ("attention/query", hidden_dim * width, width),
            ("attention/key, value", 2 * tokens * hidden_dim * width, 2 * tokens * width),
            ("attention/query x key", tokens * width, tokens * self.num_heads),
            ("attention/weights x value", tokens * width, width),
            ("attention/out", width * hidden_dim, hidden_dim),
            ("norm", 0, hidden_dim),
            ("mlp", self.mlp.multiply_adds((None, 1, hidden_dim)), 2 * self.mlp_dim + hidden_dim),
            ("residual", 0, hidden_dim),
        ]

    def compute_output_shape(self, tokens_shape, sizes_shape=None):
        return tokens_shape[0], tokens_shape[-1]

    def compute_output_spec(self, tokens, sizes=None, return_attention_scores=False):
        batch, length, hidden_dim = tokens.shape
        patches = None if length is None else length - self.num_prefix_tokens
        scores = [(batch, self.num_heads, 1, patches)] if return_attention_scores else []
        return self.spec((batch, hidden_dim), *scores)
