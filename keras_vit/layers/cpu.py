"""CPU speed-ups of 5% or more for ViT-B/16; KERAS_VIT_CPU_TRICKS=0, set before Python starts, turns them off."""

import functools
import math
import os

import keras
from keras import ops

from keras_vit.activations import gelu_tanh

ON_TORCH = keras.backend.backend() == "torch"
if ON_TORCH:
    import torch

ENABLED = os.environ.get("KERAS_VIT_CPU_TRICKS") != "0"
# The MLP width of Ti/16. A narrower GELU is not worth compiling.
COMPILED_WIDTH = 768
_GELUS = keras.activations.gelu, gelu_tanh


@functools.cache
def has_gpu():
    """Whether TensorFlow or JAX runs on an accelerator."""
    return not keras.distribution.list_devices()[0].startswith("cpu")


def on_jax_cpu():
    """Whether JAX runs on a CPU, with the speed-ups on."""
    return ENABLED and keras.backend.backend() == "jax" and not has_gpu()


def materialize(x):
    """Returns `x`; on a JAX CPU, makes XLA store `x` and its gradient instead of recomputing them."""
    if not on_jax_cpu() or 0 in x.shape:
        return x
    # XLA recomputes the tokens' gradient, a sum over all blocks, at each use, but not inside a runtime condition.
    first = x[(0,) * len(x.shape)]
    # The second branch runs only if the first number is NaN, and returns the same values.
    return ops.cond(first == first, lambda: x, lambda: ops.abs(x) * ops.sign(x))


def dense(x, kernel, bias, activation=None, training=False):
    """Returns `activation(x @ kernel + bias)`; `bias` and `activation` may be None."""
    if ON_TORCH:
        kernel, bias = _value(kernel), _value(bias)
        # Keras' conversion, also to its device, takes longer than to see that there is nothing to convert.
        here = isinstance(x, torch.Tensor) and x.device == kernel.device
        if not here or (bias is not None and bias.device != x.device):
            x, kernel, bias = (None if y is None else ops.convert_to_tensor(y) for y in (x, kernel, bias))
        if x.dtype == kernel.dtype:
            return _dense_on_torch(x, kernel, bias, activation)
    # With one row per token, TensorFlow fuses matmul, bias and GELU, and gradients are faster.
    shape = ops.shape(x)
    by_rows = ENABLED and len(shape) > 2 and 0 not in x.shape[1:]
    if by_rows:
        x = ops.reshape(x, (-1, shape[-1]))
    dtype = keras.backend.result_type(x.dtype, kernel.dtype)
    x = matmul(x, kernel)
    # A GELU is computed before this is rounded; another activation may return a dtype of its own.
    is_wide = dtype == "bfloat16" and x.dtype == "float32"
    is_gelu = activation in _GELUS
    if bias is not None:
        x = ops.add(x, bias)
    if is_wide and not is_gelu:
        x = ops.cast(x, dtype)
    if activation is not None:
        x = activate(activation, x, training)
    if is_wide and is_gelu:
        x = ops.cast(x, dtype)
    return ops.reshape(x, (-1, *shape[1:-1], x.shape[-1])) if by_rows else x


def matmul(x, y):
    """Returns `x @ y`; in float32 for bfloat16 on a JAX CPU."""
    if not on_jax_cpu() or not x.dtype == y.dtype == "bfloat16":
        return ops.matmul(x, y)
    import jax.numpy as jnp

    # XLA uses the processor's products of bfloat16 only for sums in float32, of at most one batch dimension.
    return jnp.matmul(*map(ops.convert_to_tensor, (x, y)), preferred_element_type="float32")


def _value(weight):
    """Returns the tensor of a weight, which may be one already, or None."""
    return weight.value if isinstance(weight, keras.Variable) else weight


def _dense_on_torch(x, kernel, bias, activation=None):
    x = torch.nn.functional.linear(x, kernel.T, bias)
    if activation is None:
        return x
    gelu = _gelu_of(activation) if ENABLED else None
    # Programs that are traced or differentiated must contain only public operations.
    recorded = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing()
    if gelu is not None and not recorded and not _is_watched():
        # In place, since nobody else has the product: fresh memory would take longer than the GELU.
        return torch.ops.aten.gelu_(x, approximate=gelu)
    return activation(x)


def _is_watched():
    """Whether a mode of PyTorch, such as a log of activations, sees each operation and may keep its output."""
    # Neither is public: where one is missing, there may be a mode.
    names = ("_len_torch_dispatch_stack", "_len_torch_function_stack")
    return any(getattr(torch._C, name, lambda: 1)() for name in names)


def _gelu_of(activation):
    """PyTorch's name for the approximation of a GELU; None for another activation."""
    if activation is gelu_tanh:
        return "tanh"
    return "none" if activation is keras.activations.gelu else None


def activate(activation, x, training=False):
    """Returns `activation(x)`, up to rounding.

    In training on CPUs, TensorFlow compiles wide GELUs, whose gradient is ten ops.
    """
    if on_jax_cpu() and activation is keras.activations.gelu and x.dtype == "float32":
        # JAX's own, by the complement of erf, takes twice as long.
        return 0.5 * x * (1 + ops.erf(x * math.sqrt(0.5)))
    is_wide_gelu = activation in _GELUS and x.shape[-1] >= COMPILED_WIDTH
    if not ENABLED or not training or not is_wide_gelu or keras.backend.backend() != "tensorflow":
        return activation(x)
    return activation(x) if has_gpu() or not _has_xla() else _compiled(activation)(x)


@functools.cache
def _compiled(function):
    import tensorflow as tf

    @tf.function(jit_compile=True, reduce_retracing=True)
    def forward(x):
        return function(x)

    @tf.function(jit_compile=True, reduce_retracing=True)
    def backward(x, gradient):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = function(x)
        return tape.gradient(outputs, x, gradient)

    @tf.custom_gradient
    def run(x):
        return forward(x), functools.partial(backward, x)

    return run


@functools.cache
def _has_xla():
    """Whether this TensorFlow build includes XLA."""
    import tensorflow as tf

    with tf.init_scope():
        try:
            return bool(tf.function(lambda x: x > 0, jit_compile=True)(tf.ones([])))
        except (tf.errors.OpError, ValueError):
            return False
