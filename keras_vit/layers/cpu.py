"""CPU speed-ups of 5% or more for ViT-B/16; KERAS_VIT_CPU_TRICKS=0, set before Python starts, turns them off."""

import functools
import os
from pathlib import Path

import keras
from keras import ops

from keras_vit.activations import gelu_tanh

ENABLED = os.environ.get("KERAS_VIT_CPU_TRICKS") != "0"
# The MLP width of Ti/16. A narrower GELU is not worth compiling.
COMPILED_WIDTH = 768
# oneDNN parallelizes small products badly: 197 x 192 outputs, as in Ti/16, take up to 1.8 times as long.
MIN_OUTPUTS = 2**16
CPU_INFO = Path("/proc/cpuinfo")


@functools.cache
def has_gpu():
    """Whether TensorFlow or JAX runs on an accelerator."""
    return not keras.distribution.list_devices()[0].startswith("cpu")


def materialize(x):
    """Returns `x`; on a JAX CPU, makes XLA store `x` and its gradient instead of recomputing them."""
    if not ENABLED or keras.backend.backend() != "jax" or has_gpu() or 0 in x.shape:
        return x
    # XLA recomputes the tokens' gradient, a sum over all blocks, at each use, but not inside a runtime condition.
    first = x[(0,) * len(x.shape)]
    # The second branch runs only if the first number is NaN, and returns the same values.
    return ops.cond(first == first, lambda: x, lambda: ops.abs(x) * ops.sign(x))


def dense(x, kernel, bias, activation=None, training=False):
    """Returns `activation(x @ kernel + bias)`; `bias` and `activation` may be None."""
    if keras.backend.backend() == "torch":
        x, kernel = ops.convert_to_tensor(x), ops.convert_to_tensor(kernel)
        if x.dtype == kernel.dtype:
            x = _linear_on_torch(x, kernel, None if bias is None else ops.convert_to_tensor(bias))
            return x if activation is None else activation(x)
    # With one row per token, TensorFlow fuses matmul, bias and GELU, and gradients are faster.
    shape = ops.shape(x)
    by_rows = ENABLED and len(shape) > 2 and 0 not in x.shape[1:]
    if by_rows:
        x = ops.reshape(x, (-1, shape[-1]))
    x = ops.matmul(x, kernel)
    if bias is not None:
        x = ops.add(x, bias)
    if activation is not None:
        x = activate(activation, x, training)
    return ops.reshape(x, (-1, *shape[1:-1], x.shape[-1])) if by_rows else x


def _linear_on_torch(x, kernel, bias):
    import torch
    from torch.nn import functional

    # A traced program would be tied to the example's sizes.
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if ENABLED and x.device.type == "cpu" and not traced:
        rows, units = x.numel() // x.shape[-1], kernel.shape[-1]
        fewest_rows = min_rows().get(keras.backend.standardize_dtype(x.dtype))
        if fewest_rows and rows >= fewest_rows and rows * units >= MIN_OUTPUTS:
            convolution = _convolution()
            # Even without gradients, `apply` takes a tenth of a small model's time.
            run = convolution.apply if torch.is_grad_enabled() else convolution.forward
            outputs = run(x.reshape(rows, x.shape[-1]), kernel, bias)
            return outputs.reshape(*x.shape[:-1], units)
    return functional.linear(x, kernel.T, bias)


@functools.cache
def min_rows():
    """Maps dtypes to the number of rows from which a 1 x 1 convolution beats matmul: PyTorch on AMD processors."""
    import torch

    # PyTorch's float32 matmul uses MKL, up to twice as slow on AMD; its convolutions use oneDNN.
    try:
        info = CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        info = ""
    if "AuthenticAMD" not in info or not torch.backends.mkldnn.is_available():
        return {}
    return {"float32": 64, "bfloat16": 1024} if "avx512_bf16" in info else {"float32": 64}


@functools.cache
def _convolution():
    """A torch autograd function for `x @ kernel + bias` as a convolution, with faster gradients than PyTorch's own."""
    import torch
    from torch.nn import functional

    def pixels(rows):
        return rows[None, :, None].permute(0, 3, 1, 2)

    def rows(pixels):
        return pixels.permute(0, 2, 3, 1)[0, :, 0]

    def product(x, kernel, bias=None):
        return rows(functional.conv_transpose2d(pixels(x), kernel[:, :, None, None], bias))

    class Convolution(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, kernel, bias):
            return product(x, kernel, bias)

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, kernel, _ = inputs
            of_x, of_kernel, _ = ctx.needs_input_grad
            ctx.save_for_backward(x if of_kernel else None, kernel if of_x else None)
            ctx.save_for_forward(x, kernel)

        @staticmethod
        def backward(ctx, gradient):
            x, kernel = ctx.saved_tensors
            of_x, of_kernel, of_bias = ctx.needs_input_grad
            # Under autocast the gradient's dtype differs.
            return (
                rows(functional.conv2d(pixels(gradient.to(kernel.dtype)), kernel[:, :, None, None])) if of_x else None,
                product(x.T.contiguous(), gradient.to(x.dtype)) if of_kernel else None,
                gradient.sum(0) if of_bias else None,
            )

        @staticmethod
        def jvp(ctx, of_x, of_kernel, of_bias):
            x, kernel = ctx.saved_tensors
            parts = [] if of_x is None else [product(of_x, kernel)]
            parts += [] if of_kernel is None else [product(x, of_kernel)]
            parts += [] if of_bias is None else [of_bias.expand(len(x), -1)]
            return sum(parts[1:], parts[0])

    return Convolution


def activate(activation, x, training=False):
    """Returns `activation(x)`; in training on CPUs, TensorFlow compiles wide GELUs, whose gradient is ten ops."""
    is_wide_gelu = activation in (keras.activations.gelu, gelu_tanh) and x.shape[-1] >= COMPILED_WIDTH
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
