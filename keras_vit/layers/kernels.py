"""Attention and dense products, computed in the fastest way of each backend."""

import contextlib
import functools
import math

import keras
from keras import ops

# If there are more than _LONG tokens (724 x 724 pixels in patches of 16), attention computes at most _SLICE queries at
# a time.
_LONG, _SLICE = 2048, 512


def dense(x, kernel, bias=None, dtype=None):
    """Returns `x @ kernel + bias`, with `x` (..., channels) and `kernel` (channels, units).

    If `dtype` is given, the weights are cast to it.
    """
    x, kernel, bias = ops.convert_to_tensor(x), _read(kernel, dtype), None if bias is None else _read(bias, dtype)
    if keras.backend.backend() == "torch" and x.dtype == kernel.dtype:
        from torch.nn import functional

        return functional.linear(x, kernel.T, bias)
    dtype, shape = keras.backend.result_type(x.dtype, kernel.dtype), ops.shape(x)
    if keras.backend.backend() == "jax" and len(shape) > 2:
        # Make `x` a matrix with one row per token. On CPUs, XLA then computes the gradients of a ViT-B/16 1.9 times as
        # fast.
        x = ops.reshape(x, (math.prod(shape[:-1]), shape[-1]))
    if keras.backend.backend() == "jax" and x.dtype == kernel.dtype == "bfloat16" and not _has_gpu():
        import jax.numpy as jnp

        # On CPUs, XLA uses bfloat16 instructions only if the matrix product accumulates in float32.
        x = jnp.matmul(x, kernel, preferred_element_type="float32")
    else:
        x = ops.matmul(x, kernel)
    x = ops.cast(x if bias is None else ops.add(x, bias), dtype)
    return ops.reshape(x, (*shape[:-1], x.shape[-1])) if len(shape) > len(x.shape) else x


def _read(weight, dtype=None):
    """Returns the value of a weight, cast to `dtype`. For a variable, this is faster than `ops.convert_to_tensor`."""
    value = weight.value if isinstance(weight, keras.Variable) else ops.convert_to_tensor(weight)
    return value if dtype in (None, keras.backend.standardize_dtype(value.dtype)) else ops.cast(value, dtype)


def split_heads(x, num_heads):
    """Splits (batch, num_tokens, 3 * channels) into three tensors, each (batch, num_tokens, num_heads, head_dim)."""
    if keras.backend.backend() == "torch" and not isinstance(x, keras.KerasTensor):
        # On PyTorch, these two operations take less time than a split and a reshape of each part.
        return x.unflatten(-1, (3, num_heads, -1)).unbind(2)
    shape = -1, ops.shape(x)[1], num_heads, x.shape[-1] // (3 * num_heads)
    return tuple(ops.reshape(each, shape) for each in ops.split(x, 3, axis=-1))


def activate(x, activation):
    """Returns `activation(x)`. On JAX, computes the exact GELU with erf in float32."""
    if keras.backend.backend() != "jax" or activation is not keras.activations.gelu:
        return activation(x)
    # JAX's own GELU uses erfc, which takes several times as long as erf. In bfloat16, JAX's GELU also rounds after each
    # of its steps.
    y = ops.cast(x, "float32")
    return ops.cast(0.5 * y * (1 + ops.erf(y * math.sqrt(0.5))), x.dtype)


def layer_norm(x, gamma, beta, epsilon):
    """Normalizes the last axis in PyTorch's kernel. Rounds `gamma` and `beta` to the dtype of `x`; they may be None."""
    from torch.nn import functional

    gamma, beta = (None if each is None else _read(each).to(x.dtype) for each in (gamma, beta))
    return functional.layer_norm(x, x.shape[-1:], gamma, beta, epsilon)


@contextlib.contextmanager
def in_one_piece():
    """Inside the `with` block, attention is never computed in slices, because some exporters do not support loops."""
    global _LONG
    before, _LONG = _LONG, math.inf
    try:
        yield
    finally:
        _LONG = before


def has_fused_kernel():
    """Returns True if the backend has a fused attention kernel: on PyTorch, and on JAX with a GPU."""
    backend = keras.backend.backend()
    return backend == "torch" or (backend == "jax" and _has_gpu())


@functools.cache
def _has_gpu():
    return not keras.distribution.list_devices()[0].startswith("cpu")


def attend(query, key, value, bias, training=False):
    """Computes `softmax(Q K^T / sqrt(head_dim) + bias) V`. `bias` may be None.

    `query`, `key`, `value` and the output are (batch, num_tokens, num_heads, head_dim). There may be fewer queries than
    keys. The backend's fused kernel is used if it supports the inputs. If not, long sequences are computed in slices of
    queries, so that memory grows linearly with the number of tokens.
    """
    if keras.backend.backend() == "jax" and has_fused_kernel() and _suits_cudnn(query, key):
        return _attend_by_cudnn(query, key, value, bias)
    if keras.backend.backend() == "torch" and has_fused_kernel():
        # On PyTorch, `ops.dot_product_attention` would copy the inputs, and does not accept a bias.
        from torch.nn import functional

        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias).transpose(1, 2)
    query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    return ops.transpose(_attend_in_slices(query, key, value, bias, training), (0, 2, 1, 3))


def _suits_cudnn(query, key):
    # cuDNN needs as many queries as keys, and a 16-bit dtype. In float32, JAX computes attention without cuDNN and
    # keeps all scores. If the sequence is long, these scores take too much memory, so return False.
    is_short = keras.backend.standardize_dtype(query.dtype) != "float32" or not _is_long(query.shape[1])
    return is_short and query.shape[1] == key.shape[1]


def _attend_by_cudnn(query, key, value, bias):
    length = query.shape[1]
    if bias is not None:
        # cuDNN needs a bias for each query, so broadcast it.
        bias = ops.broadcast_to(bias, (*bias.shape[:2], length, length))
    attention = _odd_attention() if length % 2 else ops.dot_product_attention
    return attention(query, key, value, bias)


@functools.cache
def _odd_attention():
    """Returns a function that computes attention by cuDNN for an odd number of tokens, such as 197."""
    import jax

    @jax.custom_vjp
    def attend_odd(query, key, value, bias):
        return ops.dot_product_attention(query, key, value, bias)

    # cuDNN has no gradient for odd numbers of tokens, so add a masked token for the gradient. This is faster than
    # attention without cuDNN.
    attend_odd.defvjp(lambda *inputs: jax.vjp(_attend_padded, *inputs), lambda pullback, gradient: pullback(gradient))
    return attend_odd


def _attend_padded(query, key, value, bias):
    length = query.shape[1]
    query, key, value = (ops.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (query, key, value))
    if bias is not None:
        bias = ops.pad(bias, ((0, 0), (0, 0), (0, 1), (0, 1)))
    mask = ops.broadcast_to(ops.arange(length + 1) < length, (1, 1, length + 1, length + 1))
    return ops.dot_product_attention(query, key, value, bias, mask)[:, :length]


def attend_unfused(query, key, value, bias, dropout=lambda weights: weights):
    """Returns the result of `attend` and the attention weights, (batch, num_heads, queries, keys)."""
    query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    x, weights = _attend_by_head(query, key, value, bias, dropout)
    return ops.transpose(x, (0, 2, 1, 3)), weights


def _attend_by_head(query, key, value, bias, dropout=lambda weights: weights):
    """Computes `attend_unfused` for queries, keys and values of (batch, num_heads, num_tokens, head_dim)."""
    scores = ops.matmul(query / math.sqrt(query.shape[-1]), ops.transpose(key, (0, 1, 3, 2)))
    if bias is not None:
        scores = scores + bias
    # PyTorch's softmax computes in float32 internally, so cast the scores only on other backends.
    scores = scores if keras.backend.backend() == "torch" else ops.cast(scores, "float32")
    weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
    return ops.matmul(dropout(weights), value), weights


def _attend_in_slices(query, key, value, bias, training):
    def attend_slice(query, key, value, bias=None):
        return _attend_by_head(query, key, value, bias)[0]

    if not _is_long(query.shape[2]):
        return attend_slice(query, key, value, bias)
    length, head_dim = query.shape[2:]
    count = -(-length // _SLICE)
    size = -(-length // count)

    def slices(x):
        """Returns `x` in slices of queries, (slices, batch, heads, queries, channels). The last slice is padded."""
        x = ops.pad(x, ((0, 0), (0, 0), (0, count * size - length), (0, 0)))
        return ops.moveaxis(ops.reshape(x, (-1, x.shape[1], count, size, x.shape[3])), 2, 0)

    step = keras.remat(attend_slice) if training else attend_slice
    # Pass the bias as an argument, because on TensorFlow `keras.remat` computes gradients only for arguments. Leave out
    # a bias of None, which `keras.remat` does not accept. A bias with one row for all queries is not sliced.
    by_key = [bias] if bias is not None and bias.shape[2] == 1 else []
    parts = [query] if bias is None or by_key else [query, bias]
    # Use a loop over the slices. Without it, XLA and TensorFlow would compute all slices at the same time.
    parts = [slices(part) for part in parts]
    x = _map(lambda part: step(part[0], key, value, *by_key, *part[1:]), parts)
    return ops.reshape(ops.moveaxis(x, 0, 2), (-1, query.shape[1], count * size, head_dim))[:, :, :length]


def _is_long(length):
    # Sequences of unknown length are never sliced. Their length is None in TensorFlow and a symbol in JAX's export.
    return isinstance(length, int) and length > _LONG


def _map(function, parts):
    """Stacks `function([part[i] for part in parts])` for all i.

    Each result must have the shape and dtype of `parts[0][0]`.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.map(function, parts)
    import tensorflow as tf

    # On TensorFlow, `ops.map` would compute ten slices at the same time, and so need more memory.
    signature = tf.TensorSpec(parts[0].shape[1:], parts[0].dtype)
    return tf.map_fn(function, parts, parallel_iterations=1, fn_output_signature=signature)
