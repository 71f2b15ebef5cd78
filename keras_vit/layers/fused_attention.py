import contextlib
import math

import keras
from keras import ops

from keras_vit.layers import cpu
from keras_vit.layers.placement import layout_of

# Longer sequences are attended to by this many queries at a time: 2,048 tokens are 724 pixels in patches of 16.
_LONG, _SLICE = 2048, 512


@contextlib.contextmanager
def in_one_piece():
    """Within it long sequences are not sliced, for converters that know no loops."""
    global _LONG
    before, _LONG = _LONG, math.inf
    try:
        yield
    finally:
        _LONG = before


def has_fused_kernel():
    """Whether the backend has a fused attention kernel: PyTorch, and JAX on a GPU."""
    backend = keras.backend.backend()
    return backend == "torch" or (backend == "jax" and cpu.has_gpu())


def attend(query, key, value, bias, training=False, scale=None):
    """Computes `softmax(Q K^T * scale + bias) V` without keeping the weights; None is `1 / sqrt(head_dim)`.

    Inputs and output: (batch, num_heads, num_tokens, head_dim), where there may be fewer queries than keys. By the
    backend's fused kernel; a backend without one computes long sequences in slices of queries, so that memory grows
    linearly with their length.
    """
    if not has_fused_kernel():
        return _attend_in_slices(query, key, value, bias, training, scale)
    if keras.backend.backend() == "torch":
        # Keras' own operation copies its inputs and takes no bias.
        from torch.nn import functional

        return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)
    # JAX has one for 16 bits only, for as many queries as keys, and for narrow heads.
    unfused = keras.backend.standardize_dtype(query.dtype) == "float32" and _is_long(query)
    if unfused or query.shape[2] != key.shape[2] or scale is not None:
        return _attend_in_slices(query, key, value, bias, training, scale)
    length = ops.shape(query)[2]
    # cuDNN has no gradient for odd lengths, such as 197; a masked padding token is faster than unfused attention.
    odd = length % 2
    query, key, value = (
        ops.transpose(ops.pad(x, ((0, 0), (0, 0), (0, odd), (0, 0))), (0, 2, 1, 3)) for x in (query, key, value)
    )
    if bias is not None:
        # cuDNN does not broadcast the bias over the queries.
        bias = ops.broadcast_to(bias, (*bias.shape[:2], length, length))
        bias = ops.pad(bias, ((0, 0), (0, 0), (0, odd), (0, odd)))
    mask = ops.broadcast_to(ops.arange(length + odd) < length, (1, 1, length + odd, length + odd)) if odd else None
    x = ops.dot_product_attention(query, key, value, bias=bias, mask=mask)[:, :length]
    return ops.transpose(x, (0, 2, 1, 3))


def attend_few(query, tokens, key_kernel, value_kernel, bias, training=False):
    """Computes `attend` of few queries to the keys `tokens @ key_kernel` and values `tokens @ value_kernel`.

    Computes neither of the two, since q (x W)^T = (q W^T) x^T, and likewise for the values: with fewer queries than
    channels of a head, that is less work. A bias of the keys would add the same to all scores of a query, and that of
    the values adds to the result.

    Args:
        query: (batch, num_heads, queries, head_dim).
        tokens: (batch, num_tokens, hidden_dim).
        key_kernel, value_kernel: (hidden_dim, num_heads, head_dim).
        bias: As for `attend`.

    Returns:
        (batch, num_heads, queries, head_dim).
    """
    num_heads, count, head_dim = ops.shape(query)[1:]
    hidden_dim = tokens.shape[-1]
    query = ops.einsum("bhqd,chd->bhqc", query, key_kernel)
    # The heads are queries of one head, whose keys and values are the tokens.
    query = ops.reshape(query, (-1, 1, num_heads * count, hidden_dim))
    if bias is not None and tuple(bias.shape[1:3]) != (1, 1):
        bias = ops.reshape(bias, (-1, 1, num_heads * count, ops.shape(bias)[3]))
    x = attend(query, tokens[:, None], tokens[:, None], bias, training, scale=1 / math.sqrt(head_dim))
    x = ops.reshape(x, (-1, num_heads, count, hidden_dim))
    return ops.einsum("bhqc,chd->bhqd", x, value_kernel)


def _attend_in_slices(query, key, value, bias, training, scale=None):
    def attend_slice(query, key, value, bias=None):
        # float16 has no room for the sum of many values.
        if cpu.on_jax_cpu() and training and value.dtype != "float16":
            return _attend_to_differentiate(query, key, value, bias, scale)
        # XLA fuses bfloat16 of one batch dimension only, but would lose a split over devices by heads.
        if cpu.on_jax_cpu() and value.dtype == "bfloat16" and bias is None and layout_of("heads of tokens") is None:
            shape = ops.shape(query)
            query, key, value = (ops.reshape(x, (-1, 1, *ops.shape(x)[2:])) for x in (query, key, value))
            return ops.reshape(attend_unfused(query, key, value, None, scale=scale)[0], shape)
        return attend_unfused(query, key, value, bias, scale=scale)[0]

    if not _is_long(query):
        return attend_slice(query, key, value, bias)
    length, head_dim = query.shape[2:]
    count = -(-length // _SLICE)
    size = -(-length // count)

    def slices(x):
        """Returns (slices, batch, heads, queries, channels); the last slice is filled up."""
        x = ops.pad(x, ((0, 0), (0, 0), (0, count * size - length), (0, 0)))
        return ops.moveaxis(ops.reshape(x, (-1, x.shape[1], count, size, x.shape[3])), 2, 0)

    step = keras.remat(attend_slice) if training else attend_slice
    # TensorFlow's recomputation takes tensors only, not None, and has no gradient for those it is not given.
    by_key = [bias] if bias is not None and bias.shape[2] == 1 else []
    parts = [query] if bias is None or by_key else [query, bias]
    # In a loop: written one after another, XLA and TensorFlow compute the slices side by side, and keep all scores.
    parts = [slices(part) for part in parts]
    x = _map(lambda part: step(part[0], key, value, *by_key, *part[1:]), parts)
    return ops.reshape(ops.moveaxis(x, 0, 2), (-1, query.shape[1], count * size, head_dim))[:, :, :length]


def _is_long(query):
    # Not where it is known at run time only: TensorFlow has None then, JAX a symbol when it exports.
    length = query.shape[2]
    return isinstance(length, int) and length > _LONG


def _map(function, parts):
    """Returns what a function returns for one part after another, of the shape of the first of each, stacked."""
    if keras.backend.backend() != "tensorflow":
        return ops.map(function, parts)
    import tensorflow as tf

    # ops.map would compute ten parts at once.
    signature = tf.TensorSpec(parts[0].shape[1:], parts[0].dtype)
    return tf.map_fn(function, parts, parallel_iterations=1, fn_output_signature=signature)


def attend_unfused(query, key, value, bias, dropout=lambda weights: weights, scale=None):
    """Returns the result of `attend` and the attention weights, (batch, num_heads, queries, keys)."""
    weights = ops.cast(ops.softmax(_scores(query, key, bias, scale), axis=-1), value.dtype)
    return ops.cast(cpu.matmul(dropout(weights), value), value.dtype), weights


def _attend_to_differentiate(query, key, value, bias, scale):
    """Returns the result of `attend`, divided last: on JAX's CPUs its gradient is up to twice as fast as softmax's."""
    scores = _scores(query, key, bias, scale)
    weights = ops.exp(scores - ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True)))
    x = cpu.matmul(ops.cast(weights, value.dtype), value) / ops.sum(weights, axis=-1, keepdims=True)
    return ops.cast(x, value.dtype)


def _scores(query, key, bias, scale):
    query = query / math.sqrt(query.shape[-1]) if scale is None else query * scale
    scores = cpu.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
    if bias is not None:
        scores = scores + bias
    # PyTorch's softmax computes in float32 internally.
    return scores if keras.backend.backend() == "torch" else ops.cast(scores, "float32")
