"""Calls of inner layers on PyTorch without Keras' bookkeeping, which takes longer than a small model's products."""

import collections

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
    """Returns `layer.call(x)`, where `is_direct`; a norm by the function that Keras' own ends in, which is faster."""
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
    """Whether PyTorch computes, and keeps nothing for a gradient."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    return not torch.is_grad_enabled()


def run_through_graph(model, inputs, operation_fn):
    """Runs a functional model's layers as Keras does, which keeps every output, but frees each after its last use."""
    depths = sorted(model._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in model._nodes_by_depth[depth] if not node.is_input]
    uses = collections.Counter(id(x) for node in nodes for x in node.input_tensors)
    uses.update(map(id, model.outputs))
    found = {id(x): value for x, value in zip(model.inputs, keras.tree.flatten(inputs), strict=True)}
    for node in nodes:
        args, kwargs = node.arguments.fill_in(found)
        for x in node.input_tensors:
            uses[id(x)] -= 1
            if not uses[id(x)]:
                del found[id(x)]
        values = operation_fn(node.operation)(*args, **kwargs)
        pairs = zip(node.outputs, keras.tree.flatten(values), strict=True)
        found.update({id(x): value for x, value in pairs if uses[id(x)]})
        del args, kwargs, values, pairs
    return keras.tree.pack_sequence_as(model._outputs_struct, [found[id(x)] for x in model.outputs])


def reshape(x, shape):
    """Returns `ops.reshape(x, shape)`."""
    if keras.backend.backend() == "torch" and not isinstance(x, keras.KerasTensor):
        return x.reshape(shape)
    return ops.reshape(x, shape)


_KERAS_LAYERS = (keras.layers.LayerNormalization, keras.layers.Dropout)
