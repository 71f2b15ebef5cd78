import functools
import platform
from pathlib import Path

import keras
from keras import ops

MIN_ROWS = 64


@keras.saving.register_keras_serializable(package="keras_vit")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense`, faster on PyTorch: product and bias are one operation there.

    On a GPU that saves a pass over the outputs. On an AMD processor the operation is a convolution with a 1 x 1 kernel
    in float32: PyTorch takes matrix products from MKL, which runs them at half speed there, and convolutions from
    oneDNN, which does not. On TensorFlow and JAX compiling does as much, and this is Keras' layer.

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
            return super().call(inputs, training=training)
        x, kernel = ops.convert_to_tensor(inputs), ops.convert_to_tensor(self.kernel)
        bias = None if self.bias is None else ops.convert_to_tensor(self.bias)
        x = _product(x, kernel, bias)
        return x if self.activation is None else self.activation(x)

    def quantize(self, mode=None, type_check=True, **kwargs):
        # Keras passes subclasses over, since their `call` may be another one; this one computes the same.
        return super().quantize(mode, type_check=False, **kwargs)


def _product(x, kernel, bias):
    """`x @ kernel + bias` of PyTorch tensors."""
    import torch
    from torch.nn import functional

    rows = x.numel() // x.shape[-1]
    by_convolution = (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        # oneDNN lays the kernel out anew each time, which takes longer than a few rows' product.
        and rows >= MIN_ROWS
        and is_amd()
        and torch.backends.mkldnn.is_available()
        and not torch.compiler.is_exporting()
    )
    if not by_convolution:
        return functional.linear(x, kernel.T, bias)
    pixels = x.reshape(1, rows, 1, x.shape[-1]).permute(0, 3, 1, 2)
    # The transposed convolution takes the kernel as it lies in memory: (inputs, outputs, height, width).
    outputs = functional.conv_transpose2d(pixels, kernel[:, :, None, None], bias)
    return outputs.permute(0, 2, 3, 1).reshape(*x.shape[:-1], kernel.shape[-1])


@functools.cache
def is_amd():
    """Whether this machine's processor is AMD's."""
    try:
        processor = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        processor = platform.processor()
    return "AuthenticAMD" in processor
