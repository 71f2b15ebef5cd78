"""Calls of layers on PyTorch without Keras' bookkeeping, which takes longer than a small model's products."""

import keras
from keras import ops

from keras_vit.layers.cpu import ON_TORCH

if ON_TORCH:
    import torch
    from torch.nn.modules import module


def is_direct(layer, x, dtype_policy):
    """Whether `layer.call(x)` does all that `layer(x)` does, within the call of a layer of this dtype policy.

    Only for the layers that this package builds its blocks of, on tensors that need no conversion. TensorFlow and JAX
    trace a model once, so that nothing is gained there. Hooks, mixed precision, PyTorch's autocast and compilation,
    quantization and Keras' rematerialization need the layer's own call.
    """
    if not ON_TORCH or type(dtype_policy) is not keras.dtype_policies.DTypePolicy:
        return False
    compute_dtype = dtype_policy.compute_dtype
    return (
        isinstance(x, torch.Tensor)
        and x.dtype == getattr(torch, compute_dtype)
        and compute_dtype == dtype_policy.variable_dtype
        and (layer.dtype_policy is dtype_policy or layer.dtype_policy == dtype_policy)
        and _is_known(layer)
        and layer.built
        and layer._compiled_call_impl is None
        and getattr(layer, "_remat_mode", None) is None
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu" if x.is_cpu else x.device.type)
    )


def _is_known(layer):
    """Whether a layer is of this package or of Keras' plainest, and neither hooks nor regularizers see its tensors."""
    return (
        (type(layer) in _KERAS_LAYERS or type(layer).__module__.startswith("keras_vit."))
        and not isinstance(layer, keras.Model)
        and layer.activity_regularizer is None
        and "forward" not in vars(layer)
        and not (ON_TORCH and _has_hooks(layer))
    )


def _has_hooks(layer):
    return (
        (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)
        or (module._global_forward_hooks or module._global_forward_pre_hooks)
        or (module._global_backward_hooks or module._global_backward_pre_hooks)
    )


def computes_as_written(layer):
    """Whether a layer computes what its class says and nobody sees how, so that a part of it may be left out."""
    return _is_known(layer) and "call" not in vars(layer)


class InModel:
    """A layer that a functional model of a dtype policy calls: directly if `is_direct` and without a mask."""

    def __init__(self, layer, dtype_policy):
        self._layer, self._dtype_policy = layer, dtype_policy

    def __getattr__(self, name):
        # Keras' models ask whether it takes `training`.
        return getattr(self._layer, name)

    def __call__(self, *args, **kwargs):
        layer = self._layer
        if len(args) != 1 or not is_direct(layer, args[0], self._dtype_policy) or self._needs_call(args[0], kwargs):
            return layer(*args, **kwargs)
        if not layer._call_has_training_arg:
            # As in the layer's own call.
            kwargs.pop("training", None)
        return call(layer, *args, **kwargs)

    def _needs_call(self, x, kwargs):
        """Whether there is a mask, a tensor to cast to the compute dtype or another mode than `training`."""
        tensors = [value for value in kwargs.values() if isinstance(value, torch.Tensor)]
        return (
            getattr(x, "_keras_mask", None) is not None
            or any(tensor.is_floating_point() and tensor.dtype != x.dtype for tensor in tensors)
            or set(getattr(self._layer, "_call_context_args", ())) > {"training"}
        )


def call(layer, x, **kwargs):
    """Calls a layer for which `is_direct` holds; a plain layer norm by PyTorch's function, which is faster."""
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
    return ON_TORCH and not torch.is_grad_enabled()


# On PyTorch, Keras' checks take longer than a reshape or transpose.
def reshape(x, shape):
    """Returns `ops.reshape(x, shape)`."""
    return x.reshape(shape) if _is_torch_tensor(x) else ops.reshape(x, shape)


def transpose(x, axes):
    """Returns `ops.transpose(x, axes)`."""
    return x.permute(axes) if _is_torch_tensor(x) else ops.transpose(x, axes)


def _is_torch_tensor(x):
    return ON_TORCH and isinstance(x, torch.Tensor)


_KERAS_LAYERS = (keras.layers.LayerNormalization, keras.layers.Dropout, keras.layers.Identity, keras.layers.Dense)
