import math

import keras
from keras import ops

from keras_vit.layers.cpu import has_gpu


def has_fused_kernel():
    """Whether the backend has a fused attention kernel: PyTorch, and JAX on a GPU."""
    backend = keras.backend.backend()
    return backend == "torch" or (backend == "jax" and has_gpu())


def attend(query, key, value, bias):
    """Fused `softmax(Q K^T / sqrt(head_dim) + bias) V`. Inputs and output: (batch, num_heads, num_tokens, head_dim)."""
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
