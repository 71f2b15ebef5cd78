"""Calls of inner layers on PyTorch without Keras' bookkeeping, which takes longer than a small model's products."""

import keras
from keras import ops


def is_direct(layer, x, dtype_policy):
    """Whether `layer.call(x)` does all that `layer(x)` does, within the call of a layer of this dtype policy.

    Only for the layers that this package builds its blocks of, on tensors that need no conversion. TensorFlow and JAX
    trace a model once, so that nothing is gained there. Hooks, mixed precision, PyTorch's autocast and compilation,
    quantization and Keras' rematerialization need the layer's own call.
    """
    if keras.backend.backend() != "torch" or type(dtype_policy) is not keras.dtype_policies.DTypePolicy:
        return False
    import torch
    from torch.nn.modules import module

    compute_dtype = dtype_policy.compute_dtype
    return (
        isinstance(x, torch.Tensor)
        and x.dtype == getattr(torch, compute_dtype)
        and compute_dtype == dtype_policy.variable_dtype
        and layer.dtype_policy is dtype_policy
        and (type(layer) in _KERAS_LAYERS or type(layer).__module__.startswith("keras_vit."))
        and layer.built
        and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)
        and not (module._global_forward_hooks or module._global_forward_pre_hooks)
        and not (module._global_backward_hooks or module._global_backward_pre_hooks)
        and layer._compiled_call_impl is None
        and "forward" not in vars(layer)
        and getattr(layer, "_remat_mode", None) is None
        and layer.activity_regularizer is None
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled(x.device.type)
    )


def call(layer, x, **kwargs):
    """Calls a layer for which `is_direct` holds; a plain layer norm by PyTorch's function, which is faster."""
    import torch

    if (
        type(layer) is not keras.layers.LayerNormalization
        or "call" in vars(layer)
        or layer.axis != [-1]
        or layer.rms_scaling
        or layer.gamma is None
        or layer.beta is None
    ):
        return layer.call(x, **kwargs)
    gamma, beta = layer.gamma.value, layer.beta.value
    # Keras would convert other dtypes and devices.
    if {x.dtype, gamma.dtype} != {torch.float32} or gamma.device != x.device:
        return layer.call(x, **kwargs)
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta, layer.epsilon)


def is_torch_without_gradients():
    """Whether the backend is PyTorch and gradients are off."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    return not torch.is_grad_enabled()


def reshape(x, shape):
    """Returns `ops.reshape(x, shape)`, on PyTorch without Keras' checks, which take longer than the reshape."""
    if keras.backend.backend() == "torch" and not isinstance(x, keras.KerasTensor):
        return x.reshape(shape)
    return ops.reshape(x, shape)


_KERAS_LAYERS = (keras.layers.LayerNormalization, keras.layers.Dropout)
