import functools
import math

import keras
import numpy as np
from keras import ops

from keras_vit.layers import activations
from keras_vit.layers.hardware import is_computed_on_cpu, processor

# What is in a file of a layer with LoRA, besides the numbered variables.
_FACTORS, _SCALE = ("lora_kernel_a", "lora_kernel_b"), "lora_scale"


@keras.saving.register_keras_serializable(package="keras_vit")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense`, computed as each backend is fastest.

    - TensorFlow and JAX: of a matrix with a row for each token. There TensorFlow makes one operation of the product,
      the bias and, at inference, a GELU, and JAX sums the gradient of the bias faster.
    - PyTorch: product and bias are one operation, which saves a pass over the outputs. On an AMD processor that is a
      convolution with a 1 x 1 kernel where there are rows enough. In float32 PyTorch takes matrix products from MKL,
      which runs them slower there, by up to a half, and convolutions from oneDNN; in bfloat16 both are oneDNN's, and
      its convolutions faster by a tenth.

    Args:
        units: Int, the outputs' width.
        **kwargs: As for `keras.layers.Dense`.

    Call arguments:
        inputs: (..., width).

    Returns:
        (..., units).

    Example:

    >>> keras_vit.layers.Dense(8)(np.zeros((2, 197, 16))).shape
    (2, 197, 8)
    """

    def call(self, inputs, training=None):
        if keras.backend.backend() != "torch":
            return by_rows(lambda rows: self._outputs(_sum(rows, self.kernel, self.bias), training), inputs)
        x, kernel = ops.convert_to_tensor(inputs), ops.convert_to_tensor(self.kernel)
        if x.dtype != kernel.dtype:
            return super().call(inputs, training=training)
        bias = None if self.bias is None else ops.convert_to_tensor(self.bias)
        return self._outputs(_product(x, kernel, bias), training)

    def build(self, input_shape):
        alpha = self.lora_alpha
        super().build(input_shape)
        # Where the config tells of LoRA, Keras takes the rank for alpha here.
        self.lora_alpha = alpha

    # Keras' own pair adds LoRA's update to the kernel, rounded to the compute dtype, and brings back two factors of
    # zeros, which have no gradient.
    def save_own_variables(self, store):
        enabled = self.lora_enabled
        self.lora_enabled = False
        try:
            super().save_own_variables(store)
        finally:
            self.lora_enabled = enabled
        if enabled:
            for name in _FACTORS:
                store[name] = ops.convert_to_numpy(getattr(self, name))
            store[_SCALE] = np.float32(self.lora_alpha / self.lora_rank)

    def load_own_variables(self, store):
        saved = {name: store[name] for name in list(store.keys())}
        lora = {name: np.asarray(saved.pop(name)) for name in (*_FACTORS, _SCALE) if name in saved}
        if lora and not self.lora_enabled and self.quantization_mode:
            raise ValueError(
                f"Expected a layer with LoRA, or not quantized, for weights with LoRA. Received: layer {self.name!r} "
                f"without it, quantized to {self.quantization_mode!r}"
            )
        factor = ops.copy(self.lora_kernel_a) if self.lora_enabled else None
        super().load_own_variables(saved)
        if self.lora_enabled:
            self.lora_kernel_a.assign(lora.get("lora_kernel_a", factor))
            self.lora_kernel_b.assign(lora.get("lora_kernel_b", self.lora_kernel_b))
        elif lora:
            update = ops.matmul(*(lora[name] for name in _FACTORS)) * lora[_SCALE]
            self.kernel.assign(ops.add(self.kernel, ops.cast(update, self.kernel.dtype)))

    def _outputs(self, x, training):
        return x if self.activation is None else activations.apply(self.activation, x, training)

    def quantize(self, mode=None, type_check=True, **kwargs):
        # Keras passes subclasses over, since their `call` may be another one; this one computes the same.
        return super().quantize(mode, type_check=type_check and type(self) is not Dense, **kwargs)


def by_rows(function, inputs):
    """What a function of rows, (number, width), makes of those of inputs, (..., width), of which a token is one.

    TensorFlow and JAX multiply matrices faster than anything of more axes, and so do they in the gradients.
    """
    shape = ops.shape(inputs)
    if len(shape) == 2 or 0 in inputs.shape[1:]:
        return function(inputs)
    outputs = function(ops.reshape(inputs, (-1, shape[-1])))
    return ops.reshape(outputs, (-1, *shape[1:-1], outputs.shape[-1]))


def _sum(x, kernel, bias):
    """`x @ kernel + bias` by operations that Keras has."""
    x = ops.matmul(x, kernel)
    return x if bias is None else ops.add(x, bias)


def _product(x, kernel, bias):
    """`x @ kernel + bias` of PyTorch tensors."""
    import torch
    from torch.nn import functional

    # Sizes are looked at where they are known alone: a program that is traced would be tied to them.
    if is_computed_on_cpu(x):
        rows, units = x.numel() // x.shape[-1], kernel.shape[-1]
        fewest_rows, fewest_outputs = min_sizes().get(keras.backend.standardize_dtype(x.dtype), (math.inf, math.inf))
        if rows >= fewest_rows and rows * units >= fewest_outputs:
            convolution = _convolution()
            # What an autograd function does around its work takes a tenth of a small model's time.
            run = convolution.apply if torch.is_grad_enabled() else convolution.forward
            outputs = run(x.reshape(rows, x.shape[-1]), kernel, bias)
            return outputs.reshape(*x.shape[:-1], units)
    return functional.linear(x, kernel.T, bias)


@functools.cache
def min_sizes():
    """By dtype, from how many rows and outputs on PyTorch's convolution takes less time here than its product."""
    import torch

    text = processor()
    if "AuthenticAMD" not in text or not torch.backends.mkldnn.is_available():
        return {}
    # oneDNN lays the kernel out anew each time, and does not share few outputs out well: on two cores 192 units of 197
    # rows, as in Ti/16, took 1.6 to 1.8 times as long as the product. 384 units took no longer than it.
    sizes = {"float32": (64, 2**16), "bfloat16": (1024, 2**16)}
    # Without the processor's instructions it has no convolution in bfloat16.
    return sizes if "avx512_bf16" in text else {"float32": sizes["float32"]}


@functools.cache
def _convolution():
    """The product of matrices, plus a bias, as an operation whose gradients are convolutions too.

    Each kernel stays as it lies in memory. PyTorch's own gradients of a convolution would take longer.
    """
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
            # An autocast around the forward pass has changed the gradient's dtype.
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
