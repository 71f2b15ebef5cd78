import math

import keras
from keras import ops

from keras_vit.layers.cpu import has_gpu

# Longer sequences are attended to by this many queries at a time: 2,048 tokens are 724 pixels in patches of 16.
_LONG, _SLICE = 2048, 512


def has_fused_kernel():
    """Whether the backend has a fused attention kernel: PyTorch, and JAX on a GPU."""
    backend = keras.backend.backend()
    return backend == "torch" or (backend == "jax" and has_gpu())


def attend(query, key, value, bias, training=False):
    """Computes `softmax(Q K^T / sqrt(head_dim) + bias) V` without keeping the weights.

    Inputs and output: (batch, num_heads, num_tokens, head_dim). By the backend's fused kernel; a backend without one
    computes long sequences in slices of queries, so that memory grows linearly with their length.
    """
    if not has_fused_kernel():
        return _attend_in_slices(query, key, value, bias, training)
    if keras.backend.backend() == "torch":
        # Keras' own operation copies its inputs and takes no bias.
        from torch.nn import functional

        return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
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


def _attend_in_slices(query, key, value, bias, training):
    def attend_slice(query, key, value, bias=None):
        return attend_unfused(query, key, value, bias, dropout=lambda weights: weights)[0]

    length = query.shape[2]
    # Not where it is known at run time only: TensorFlow has None then, JAX a symbol when it exports.
    if not isinstance(length, int) or length <= _LONG:
        return attend_slice(query, key, value, bias)
    step = keras.remat(attend_slice) if training else attend_slice
    parts = []
    for start in range(0, length, _SLICE):
        part = slice(start, start + _SLICE)
        # TensorFlow's recomputation takes tensors only, not None.
        biases = [] if bias is None else [bias if bias.shape[2] == 1 else bias[:, :, part]]
        parts.append(step(query[:, :, part], key, value, *biases))
    return ops.concatenate(parts, axis=2)


def attend_unfused(query, key, value, bias, dropout):
    """Returns the result of `attend` and the attention weights, (batch, num_heads, queries, keys)."""
    scores = ops.matmul(query / math.sqrt(query.shape[-1]), ops.transpose(key, (0, 1, 3, 2)))
    if bias is not None:
        scores = scores + bias
    # PyTorch's softmax computes in float32 internally.
    if keras.backend.backend() != "torch":
        scores = ops.cast(scores, "float32")
    weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
    return ops.matmul(dropout(weights), value), weights
