"""Attention by the one kernel that a backend has for it."""

import keras
from keras import ops

from keras_vit.layers.hardware import has_gpu, is_computed_on_cpu


def has_fused_kernel():
    """Whether the backend has one fused kernel for attention here, and not a composition of other operations.

    It has none on TensorFlow, nor on JAX on a CPU, where plain matrix products are faster and also compile in float16.
    """
    backend = keras.backend.backend()
    return backend == "torch" or (backend == "jax" and has_gpu())


def steps_are_faster(tokens):
    """Whether products and softmax one by one take less time at inference than the fused kernel that there is.

    On PyTorch's CPU in bfloat16 they took a quarter less time than Keras' own operation at 197 tokens; at 577 no less,
    where they would take memory. Beside `attend`, up to 390 tokens, the two are within about a tenth of each other.
    """
    is_bfloat16 = keras.backend.standardize_dtype(tokens.dtype) == "bfloat16"
    return is_bfloat16 and is_computed_on_cpu(tokens) and tokens.shape[1] <= 400


def attend(query, key, value, bias):
    """`softmax(Q K^T / sqrt(head_dim) + bias) V` by the fused kernel.

    Args:
        query: (batch, num_tokens, num_heads, head_dim); key and value too.
        bias: None, or a tensor of their dtype that broadcasts to (batch, num_heads, num_tokens, num_tokens).

    Returns:
        (batch, num_tokens, num_heads, head_dim).
    """
    if keras.backend.backend() == "torch":
        return _attend_on_torch(query, key, value, bias)
    length = ops.shape(query)[1]
    if bias is not None:
        # cuDNN takes no bias that is to be repeated for each query.
        bias = ops.broadcast_to(bias, (*bias.shape[:2], length, length))
    if length % 2 == 0:
        return ops.dot_product_attention(query, key, value, bias=bias)
    # cuDNN has no gradient for an odd number of tokens, as the 197 of ViT-B/16. One more, which none attends to,
    # costs less than the matrix products step by step.
    query, key, value = (ops.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (query, key, value))
    if bias is not None:
        bias = ops.pad(bias, ((0, 0), (0, 0), (0, 1), (0, 1)))
    mask = ops.broadcast_to(ops.arange(length + 1) < length, (1, 1, length + 1, length + 1))
    return ops.dot_product_attention(query, key, value, bias=bias, mask=mask)[:, :length]


def _attend_on_torch(query, key, value, bias):
    """Keras' own operation copies views first. From views the kernel's result is laid out so that heads join freely."""
    from torch.nn import functional

    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias).transpose(1, 2)
