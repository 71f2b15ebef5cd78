import math

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers import initializers
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.dense import Dense
from keras_vit.layers.fused_attention import attend, has_fused_kernel, steps_are_faster


def num_leading(count, length):
    """How many the first `count` of `length` tokens are; None stands for all, and for a length that is not known."""
    return min((number for number in (count, length) if number is not None), default=None)


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(CompositeLayer):
    """Multi-head self-attention with one fused projection for queries, keys and values.

    Computes `softmax(Q K^T / sqrt(head_dim)) V` for each head, joins the heads and projects back to the input's width.
    The softmax is in float32 under mixed precision. Where the backend has a fused kernel it does the work, unless the
    attention scores are asked for, dropout acts on them, `num_queries` is given or the steps one by one are faster,
    as at inference in bfloat16 on a CPU with PyTorch: then the same function is computed step by step.

    Args:
        num_heads: Int, the number of heads.
        head_dim: Int, the width of a head; `hidden_dim // num_heads` by default, which need not divide evenly: 512 wide
            with 6 heads gives 85 each.
        dropout_rate: Float in [0, 1), the dropout on the attention weights.
        qk_norm: Bool, whether queries and keys are layer-normalised over each head's width before the product.
        layer_norm_epsilon: Float, the epsilon of those two norms.
        max_relative_distance: Int or None. An int adds a learned embedding for each 1-D offset between query and key of
            up to that many tokens; longer offsets share the last one. The query's product with it is added to the
            scores.
        seed: Int or None, the random seed of the dropout.

    Call arguments:
        tokens: (batch, num_tokens, hidden_dim).
        sizes: (batch, num_tokens) or None, of how many tokens each was merged: it is attended to as if they were all
            there.
        training: Bool; dropout acts in training only.
        return_attention_scores: Bool, whether to return the attention weights too.
        return_keys: Bool, whether to return the mean of the heads' keys too.
        num_queries: Int or None, how many leading tokens to compute, each of which attends to all tokens. None for all.

    Returns:
        (batch, num_queries, hidden_dim), of all tokens by default; with `return_attention_scores=True` also the
        weights, (batch, num_heads, num_queries, num_tokens), whose rows sum to 1; with `return_keys=True` also the
        keys, (batch, num_tokens, head_dim).

    Raises:
        ValueError: If an argument is out of its range or there are more heads than channels.

    Example:

    >>> keras_vit.layers.MultiHeadSelfAttention(num_heads=12)(np.zeros((1, 197, 768))).shape
    (1, 197, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), appendix A; relative positions: appendix D.4.
    Sizes: [arXiv 2210.09461](https://arxiv.org/abs/2210.09461), equation 1. Initial weights as in the official Flax
    code: Xavier uniform for query, key, value and output each, zero biases.
    """

    def __init__(
        self,
        num_heads,
        head_dim=None,
        dropout_rate=0.0,
        qk_norm=False,
        layer_norm_epsilon=1e-6,
        max_relative_distance=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = arguments.positive_int("num_heads", num_heads)
        self.head_dim = None if head_dim is None else arguments.positive_int("head_dim", head_dim)
        self.dropout_rate = arguments.rate("dropout_rate", dropout_rate)
        self.qk_norm = bool(qk_norm)
        self.layer_norm_epsilon = arguments.positive_number("layer_norm_epsilon", layer_norm_epsilon)
        self.max_relative_distance = (
            None
            if max_relative_distance is None
            else arguments.positive_int("max_relative_distance", max_relative_distance)
        )
        self.seed = seed
        self.dropout = keras.layers.Dropout(self.dropout_rate, seed=seed, dtype=self.dtype_policy, name="dropout")
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, tokens_shape, sizes_shape=None):
        hidden_dim = tokens_shape[-1]
        if self.head_dim is None and hidden_dim < self.num_heads:
            raise ValueError(
                f"Expected at least as many channels as heads. Received: {hidden_dim} channels, {self.num_heads} heads."
            )
        self.key_dim = self.head_dim or hidden_dim // self.num_heads
        width = self.num_heads * self.key_dim
        self.qkv = Dense(
            3 * width,
            kernel_initializer=initializers.xavier_uniform(hidden_dim, width),
            # A frozen layer that is loaded again tells its sublayers by this alone.
            trainable=self.trainable,
            dtype=self.dtype_policy,
            name="qkv",
        )
        self.qkv.build(tokens_shape)
        self.out = Dense(
            hidden_dim,
            kernel_initializer=initializers.GlorotUniform(),
            trainable=self.trainable,
            dtype=self.dtype_policy,
            name="out",
        )
        self.out.build((*tokens_shape[:-1], width))
        if self.qk_norm:
            heads_shape = (*tokens_shape[:-1], self.num_heads, self.key_dim)
            self.query_norm, self.key_norm = (
                keras.layers.LayerNormalization(
                    epsilon=self.layer_norm_epsilon, trainable=self.trainable, dtype=self.dtype_policy, name=name
                )
                for name in ("query_norm", "key_norm")
            )
            self.query_norm.build(heads_shape)
            self.key_norm.build(heads_shape)
        if self.max_relative_distance is not None:
            self.relative_embeddings = self.add_weight(
                name="relative_embeddings",
                shape=(2 * self.max_relative_distance + 1, self.key_dim),
                initializer=initializers.RandomNormal(stddev=0.02),
            )
        self.restore_changes()

    def dense_layers(self):
        return self.qkv, self.out

    def call(
        self,
        tokens,
        sizes=None,
        training=None,
        return_attention_scores=False,
        return_keys=False,
        num_queries=None,
    ):
        dropout = training and self.dropout_rate > 0
        by_steps = return_attention_scores or dropout or num_queries is not None
        fused = has_fused_kernel() and not by_steps and (training or not steps_are_faster(tokens))
        query, key, value = self.project(tokens, heads_first=not fused)
        if num_queries is not None:
            query = query[:, :, : arguments.positive_int("num_queries", num_queries)]
        bias = None
        if self.max_relative_distance is not None:
            bias = self._relative_bias(ops.transpose(query, (0, 2, 1, 3)) if fused else query, ops.shape(tokens)[1])
        if sizes is not None:
            of_sizes = ops.cast(ops.log(ops.cast(sizes, "float32")), query.dtype)[:, None, None, :]
            bias = of_sizes if bias is None else bias + of_sizes
        if fused:
            x, scores = attend(query, key, value, bias), None
        else:
            x, scores = self._attend(query, key, value, bias, training)
        x = self.out(ops.reshape(x, (-1, ops.shape(x)[1], self.num_heads * self.key_dim)))
        if not return_attention_scores and not return_keys:
            return x
        keys = (ops.mean(key, axis=2 if fused else 1),) if return_keys else ()
        return (x, *((scores,) if return_attention_scores else ()), *keys)

    def project(self, tokens, heads_first=False):
        """Queries, keys and values, each (batch, num_tokens, num_heads, head_dim), or the heads before the tokens."""
        length = ops.shape(tokens)[1]
        # One reshape and views of it: on PyTorch the gradient of a split copies more.
        qkv = ops.reshape(self.qkv(tokens), (-1, length, 3, self.num_heads, self.key_dim))
        if heads_first:
            # One transposition for the three, of which TensorFlow's parts are views then.
            query, key, value = ops.unstack(ops.transpose(qkv, (2, 0, 3, 1, 4)), 3, axis=0)
        else:
            query, key, value = ops.unstack(qkv, 3, axis=2)
        if self.qk_norm:
            # Whose policy may be float32 where the rest has another.
            query, key = (ops.cast(x, value.dtype) for x in (self.query_norm(query), self.key_norm(key)))
        return query, key, value

    def _relative_bias(self, query, num_keys):
        """The query's scaled product with the embedding of each key's offset, (batch, num_heads, queries, keys)."""
        queries, keys = (ops.arange(length, dtype="int32") for length in (ops.shape(query)[2], num_keys))
        limit = self.max_relative_distance
        offsets = ops.clip(queries[:, None] - keys[None, :], -limit, limit) + limit
        embeddings = ops.take(ops.convert_to_tensor(self.relative_embeddings), offsets, axis=0)
        return ops.einsum("bhqd,qkd->bhqk", query, embeddings) / math.sqrt(self.key_dim)

    def _attend(self, query, key, value, bias, training):
        scores = ops.matmul(query / math.sqrt(self.key_dim), ops.transpose(key, (0, 1, 3, 2)))
        if bias is not None:
            scores = scores + bias
        # In float32, as PyTorch's softmax of less is inside.
        if keras.backend.backend() != "torch":
            scores = ops.cast(scores, "float32")
        scores = ops.cast(ops.softmax(scores, axis=-1), self.compute_dtype)
        x = ops.matmul(self.dropout(scores, training=training), value)
        return ops.transpose(x, (0, 2, 1, 3)), scores

    def compute_output_shape(self, tokens_shape, sizes_shape=None):
        return tokens_shape

    def compute_output_spec(
        self,
        tokens,
        sizes=None,
        training=None,
        return_attention_scores=False,
        return_keys=False,
        num_queries=None,
    ):
        batch, length, hidden_dim = tokens.shape
        num_queries = num_leading(num_queries, length)
        shapes = [(batch, num_queries, hidden_dim)]
        if return_attention_scores:
            shapes.append((batch, self.num_heads, num_queries, length))
        if return_keys:
            shapes.append((batch, length, self.head_dim or hidden_dim // self.num_heads))
        outputs = tuple(keras.KerasTensor(shape, dtype=self.compute_dtype) for shape in shapes)
        return outputs if len(outputs) > 1 else outputs[0]

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "dropout_rate": self.dropout_rate,
            "qk_norm": self.qk_norm,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "max_relative_distance": self.max_relative_distance,
            "seed": self.seed,
        }
