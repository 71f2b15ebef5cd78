import functools
import math

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers import initializers
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.dense import Dense
from keras_vit.layers.kernels import attend, attend_unfused, dense, split_heads
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.rotary_embedding import LAYOUTS, rotate


def with_sharding(tensor, name):
    """Shards a tensor over devices with the layout that the active distribution has under the path `name`.

    Returns the tensor unchanged if there is no such layout, or if a sharded dimension of the tensor is not a multiple
    of the number of devices on its mesh axis.
    """
    layout = active_layout(name)
    if layout is None:
        return tensor
    sizes = dict(zip(layout.device_mesh.axis_names, layout.device_mesh.shape, strict=True))
    if any(axis and side % sizes[axis] for axis, side in zip(layout.axes, tensor.shape, strict=True) if side):
        return tensor
    return keras.distribution.distribute_tensor(tensor, layout)


def active_layout(name):
    """Returns the `keras.distribution.TensorLayout` that the active distribution has under `name`, or None."""
    distribution = keras.distribution.distribution()
    return None if distribution is None else distribution.get_tensor_layout(name)


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(CompositeLayer):
    """Multi-head self-attention, `softmax(Q K^T / sqrt(head_dim)) V` per head, with one fused QKV projection.

    The softmax is in float32 under mixed precision. The layer uses the backend's fused attention kernel if there is
    one. With `return_attention_scores` or active dropout, it uses matrix products and a softmax instead.

    Args:
        num_heads: Int, the number of heads.
        head_dim: Int, the width of a head. None: `hidden_dim // num_heads`, which must be at least 1.
        dropout_rate: Float in [0, 1), the dropout on the attention weights.
        qk_norm: Bool, whether to layer-normalize queries and keys per head.
        layer_norm_epsilon: Float, the epsilon of all layer norms in this layer.
        max_relative_distance: Int or None. An int adds relative position embeddings: one learned vector for each signed
            distance between two tokens in the sequence, from `-max_relative_distance` to `max_relative_distance`.
            Larger distances are clipped to this range. The dot product of the query and the vector is added to Q K^T.
        use_bias: Bool, whether queries, keys and values have a bias.
        key_bias: Bool. If False, the keys have no bias even if `use_bias` is True.
        output_norm: Bool, whether to layer-normalize the concatenated heads before the output projection.
        rotary_layout: The channels that rotary embeddings rotate together: "halves" (channels i and i + head_dim / 2)
            or "pairs" (channels 2i and 2i + 1). None for no rotary embeddings.
        seed: Int or None, the random seed of the dropout.

    Call arguments:
        tokens: (batch, num_tokens, hidden_dim).
        sizes: (batch, num_tokens) or None, the number of patches merged into each token. log(sizes) is added to the
            attention scores, as in token merging (ToMe).
        rotary: The output of `RotaryEmbedding`, required if `rotary_layout` is set. The queries and keys of the patches
            are rotated. The tokens before the patches are not rotated.
        return_attention_scores: Bool, whether to return the attention weights too.
        return_keys: Bool, whether to return the keys too, averaged over the heads.
        num_queries: Int or None. With an int, the layer returns outputs only for this many leading tokens. They still
            attend to all tokens. None means outputs for all tokens.

    Returns:
        The outputs, (batch, num_queries, hidden_dim). If the attention weights or keys are requested, a tuple that
        begins with the outputs. The attention weights, (batch, num_heads, num_queries, num_tokens), follow if they are
        requested. The keys, (batch, num_tokens, head_dim), are last if they are requested.

    Raises:
        ValueError: If `head_dim` is None and there are more heads than channels, or if only one of `rotary_layout` and
            `rotary` is given.

    Example:
    >>> keras_vit.layers.MultiHeadSelfAttention(num_heads=12)(np.zeros((1, 197, 768))).shape
    (1, 197, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), appendices A and D.4; sizes: [arXiv
    2210.09461](https://arxiv.org/abs/2210.09461), equation 1. Initialized as in the official Flax code: The query,
    key, value and output kernels are each Xavier uniform, and the biases are zero.
    """

    def __init__(
        self,
        num_heads,
        head_dim=None,
        dropout_rate=0.0,
        qk_norm=False,
        layer_norm_epsilon=1e-6,
        max_relative_distance=None,
        use_bias=True,
        key_bias=True,
        output_norm=False,
        rotary_layout=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = arguments.positive_int("num_heads", num_heads)
        self.head_dim = arguments.optional(arguments.positive_int, "head_dim", head_dim)
        self.dropout_rate = arguments.rate("dropout_rate", dropout_rate)
        self.layer_norm_epsilon = arguments.epsilon("layer_norm_epsilon", layer_norm_epsilon)
        positive = arguments.positive_int
        self.max_relative_distance = arguments.optional(positive, "max_relative_distance", max_relative_distance)
        self.set_booleans(qk_norm=qk_norm, use_bias=use_bias, key_bias=key_bias, output_norm=output_norm)
        self.rotary_layout = arguments.choice("rotary_layout", rotary_layout, (None, *LAYOUTS))
        self.seed = arguments.optional(arguments.non_negative_int, "seed", seed)
        self.dropout = self.dropout_layer(keras.layers.Dropout, self.dropout_rate, self.seed, "dropout")
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, tokens_shape, sizes_shape=None, rotary_shape=None):
        hidden_dim = tokens_shape[-1]
        self.key_dim = self.head_dim or head_width(hidden_dim, self.num_heads)
        width = self.num_heads * self.key_dim
        qkv_init = initializers.xavier_uniform(hidden_dim, width)
        kind = Dense if self.key_bias or not self.use_bias else _KeysWithoutBias
        options = {"use_bias": self.use_bias, **self.inherited}
        self.qkv = kind(3 * width, kernel_initializer=qkv_init, name="qkv", **options)
        self.qkv.build(tokens_shape)
        self.out = Dense(hidden_dim, kernel_initializer=initializers.GlorotUniform(), name="out", **self.inherited)
        self.out.build((*tokens_shape[:-1], width))
        if self.dropout is not None:
            # If the first call built this layer, PyTorch would compile the attention layer twice.
            self.dropout.build((None, self.num_heads, None, None))
        options = {"epsilon": self.layer_norm_epsilon, **self.inherited}
        if self.output_norm:
            self.norm = LayerNorm(name="norm", **options)
            self.norm.build((*tokens_shape[:-1], width))
        if self.qk_norm:
            self.query_norm = LayerNorm(name="query_norm", **options)
            self.key_norm = LayerNorm(name="key_norm", **options)
            self.query_norm.build((None, None, self.num_heads, self.key_dim))
            self.key_norm.build((None, None, self.num_heads, self.key_dim))
        if self.max_relative_distance is not None:
            shape, normal = (2 * self.max_relative_distance + 1, self.key_dim), initializers.RandomNormal(stddev=0.02)
            self.relative_embeddings = self.add_weight(shape, normal, name="relative_embeddings")
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
        rotary=None,
    ):
        self._check_rotary(rotary)
        num_queries = arguments.optional(arguments.positive_int, "num_queries", num_queries)
        dropout = training and self.dropout_rate > 0
        query, key, value = self.project(tokens)
        if rotary is not None:
            query, key = (rotate(x, rotary, self.rotary_layout) for x in (query, key))
        if num_queries is not None:
            query = query[:, :num_queries]
        bias = None
        if self.max_relative_distance is not None:
            bias = self._relative_bias(query, ops.shape(tokens)[1])
        if sizes is not None:
            log_sizes = ops.cast(ops.log(ops.cast(sizes, "float32")), query.dtype)[:, None, None, :]
            bias = log_sizes if bias is None else bias + log_sizes
        if return_attention_scores or dropout:
            drop = {"dropout": functools.partial(self.run, self.dropout, training=True)} if dropout else {}
            x, scores = attend_unfused(query, key, value, bias, **drop)
        else:
            x = attend(query, key, value, bias, training)
        x = ops.reshape(x, (-1, ops.shape(x)[1], self.num_heads * self.key_dim))
        x = self.run(self.out, self.run(self.norm, x) if self.output_norm else x)
        outputs = [x]
        if return_attention_scores:
            outputs.append(scores)
        if return_keys:
            outputs.append(ops.mean(key, axis=2))
        return tuple(outputs) if len(outputs) > 1 else x

    def _check_rotary(self, rotary):
        if (rotary is None) != (self.rotary_layout is None):
            received = f"rotary_layout={self.rotary_layout!r}, rotary of shape {getattr(rotary, 'shape', None)}"
            raise ValueError(f"Expected `rotary` if and only if `rotary_layout` is set. Received: {received}")

    def cost_steps(self, tokens_shape, num_queries=None, **call_arguments):
        _, tokens, hidden_dim = tokens_shape
        queries, width = min(num_queries or tokens, tokens), self.num_heads * self.key_dim
        product, scores = queries * tokens * width, self.num_heads * queries * tokens
        steps = [("qkv", 3 * tokens * hidden_dim * width, 3 * tokens * width)]
        steps += [("query_norm, key_norm", 0, 2 * tokens * width)] if self.qk_norm else []
        steps += [("relative positions", product, scores)] if self.max_relative_distance is not None else []
        steps += [("rotated query, key", 0, 2 * tokens * width)] if self.rotary_layout is not None else []
        steps += [("query x key", product, scores), ("weights x value", product, queries * width)]
        steps += [("norm", 0, queries * width)] if self.output_norm else []
        return [*steps, ("out", queries * width * hidden_dim, queries * hidden_dim)]

    def project(self, tokens):
        """Returns queries, keys and values, each (batch, num_tokens, num_heads, head_dim)."""
        if active_layout("heads of a kernel") is None or self.quantization_mode:
            query, key, value = split_heads(self.run(self.qkv, tokens), self.num_heads)
        else:
            query, key, value = ops.unstack(self._project_by_heads(tokens), 3, axis=2)
        if self.qk_norm:
            # Cast, because the norms may have another dtype policy.
            query, key = self.run(self.query_norm, query), self.run(self.key_norm, key)
            query, key = (ops.cast(x, value.dtype) for x in (query, key))
        return query, key, value

    def _project_by_heads(self, tokens):
        """Returns queries, keys and values as (batch, num_tokens, 3, num_heads, head_dim), with the heads sharded.

        If the columns of the fused kernel were sharded instead, a device could get queries of one head and keys of
        another. XLA would then copy all queries, keys and values to each device.
        """
        kernel = ops.reshape(self.qkv.kernel, (-1, 3, self.num_heads, self.key_dim))
        kernel = with_sharding(kernel, "heads of a kernel")
        qkv = ops.einsum("bnc,cphd->bnphd", tokens, kernel)
        if self.use_bias:
            bias = self.qkv.bias if self.key_bias else self.qkv.bias_without_keys()
            qkv = qkv + ops.reshape(bias, (3, self.num_heads, self.key_dim))
        return with_sharding(qkv, "heads of tokens")

    def _relative_bias(self, query, num_keys):
        """Returns the relative position bias to add to the attention scores, (batch, num_heads, queries, keys)."""
        queries, keys = (ops.arange(length, dtype="int32") for length in (ops.shape(query)[1], num_keys))
        limit = self.max_relative_distance
        offsets = ops.clip(queries[:, None] - keys[None, :], -limit, limit) + limit
        embeddings = ops.take(ops.cast(self.relative_embeddings, query.dtype), offsets, axis=0)
        return ops.einsum("bqhd,qkd->bhqk", query, embeddings) / math.sqrt(self.key_dim)

    def compute_output_spec(self, tokens, sizes=None, rotary=None, num_queries=None, **call_arguments):
        self._check_rotary(rotary)
        batch, length, hidden_dim = tokens.shape
        queries = length if num_queries is None or length is None else min(num_queries, length)
        shapes = [(batch, queries, hidden_dim)]
        shapes += [(batch, self.num_heads, queries, length)] if call_arguments.get("return_attention_scores") else []
        shapes += [(batch, length, self.key_dim)] if call_arguments.get("return_keys") else []
        return self.spec(*shapes)


class _KeysWithoutBias(Dense):
    """The projection to queries, keys and values. The bias vector has entries for the keys, but they are not used."""

    def call(self, inputs, training=None):
        return dense(inputs, self.kernel, self.bias_without_keys(), self.compute_dtype)

    def bias_without_keys(self):
        """Returns the bias vector with zeros for the keys."""
        return ops.convert_to_tensor(self.bias) - self._key_bias()

    def quantize(self, mode=None, type_check=True, **kwargs):
        return super().quantize(mode, type_check=False, **kwargs)

    def quantized_call(self, *args, **kwargs):
        # Keras' `quantized_call` adds the bias of the keys too, so subtract it.
        outputs = super().quantized_call(*args, **kwargs)
        return outputs - ops.cast(self._key_bias(), outputs.dtype)

    def _key_bias(self):
        """Returns the bias vector with zeros for the queries and values."""
        query, key, value = ops.split(ops.convert_to_tensor(self.bias), 3)
        return ops.concatenate([ops.zeros_like(query), key, ops.zeros_like(value)])


def head_width(hidden_dim, num_heads):
    """Returns `hidden_dim // num_heads`; raises if there are more heads than channels."""
    if hidden_dim < num_heads:
        received = f"{hidden_dim} channels, {num_heads} heads"
        raise ValueError(f"Expected at least as many channels as heads. Received: {received}.")
    return hidden_dim // num_heads
