"""Calls of inner layers on PyTorch without Keras' bookkeeping, which takes longer than a small model's products."""

import functools

import keras


def is_direct(layer, dtype_policy):
    """Whether `layer.call` does all that calling the layer does, within the call of a layer of this dtype policy.

    The outer call has converted the inputs and dealt with masks. TensorFlow and JAX trace a model once, so that nothing
    is gained there. Hooks, mixed precision, PyTorch's autocast, quantization and Keras' rematerialization need the
    layer's own call.
    """
    return (
        keras.backend.backend() == "torch"
        and layer.dtype_policy is dtype_policy
        and dtype_policy.compute_dtype == dtype_policy.variable_dtype
        and layer.built
        and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)
        and getattr(layer, "_remat_mode", None) is None
        and layer.activity_regularizer is None
        and not _calls_are_changed()
    )


def _calls_are_changed():
    torch, hooks = _hooks_of_all_modules()
    return any(hooks) or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


@functools.cache
def _hooks_of_all_modules():
    import torch
    from torch.nn.modules import module

    names = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    return torch, [getattr(module, f"_global_{name}") for name in names]
