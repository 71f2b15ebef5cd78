"""Compiles the forward pass of models on PyTorch, where Keras would compile whole train steps."""

import functools
import inspect

import keras

from keras_vit import arguments

REMEDY = "Install a C++ compiler, such as g++ (and Triton for a GPU), or train without compilation"


def follow_jit_compile(model, jit_compile):
    """Applies the argument `jit_compile` of `compile` to the forward pass on PyTorch; "auto" changes nothing."""
    if keras.backend.backend() != "torch" or jit_compile == "auto":
        return
    # Keras' train step stays eager, because compiling it with the optimizer takes many minutes.
    model.jit_compile = False
    set_compiled(model, jit_compile and not model.run_eagerly)


def set_compiled(model, compiled=True):
    """Compiles the forward passes that use layers of this package, or makes them eager again.

    Nested models are included. Raises RuntimeError if PyTorch cannot compile on the device of the model.
    """
    passes = list(_forward_passes(model))
    if compiled and not passes:
        raise ValueError(f"Expected a model with layers of keras_vit. Received: {model.name!r}")
    if compiled and (reason := why_not(model)):
        raise RuntimeError(f"Expected PyTorch to compile the model for this device. Received: {reason}. {REMEDY}.")
    for owner, name in passes:
        # A compiled method is stored in the object and hides the method of the class. Remove the compiled method first.
        vars(owner).pop(name, None)
        if compiled:
            setattr(owner, name, _compiled(getattr(owner, name)))


def why_not(model):
    """Returns the reason why `torch.compile` does not work on the device of a model, or None if it works."""
    return _why_not(model.variables[0].value.device)


@functools.cache
def _why_not(device):
    import torch  # noqa: TID251

    try:
        torch.compile(lambda x: x + 1, fullgraph=True)(torch.ones(2, device=device))
    except Exception as error:
        return next(iter(str(error).strip().splitlines()), type(error).__name__)
    return None


def _compiled(function):
    import torch  # noqa: TID251

    # PyTorch compiles at most eight models of a class if `isolate_recompiles` is not set.
    isolated = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    # Use static shapes, because PyTorch cannot compile the gradient of EfficientNet's padded convolutions with symbolic
    # shapes.
    options = {"dynamic": False, **({"isolate_recompiles": True} if isolated else {})}
    compiled = torch.compile(function, **options)

    @functools.wraps(function)
    def run(*args, **kwargs):
        # Keras infers shapes on the device "meta", where compilation would cost time and gain nothing.
        tensors = [each for each in keras.tree.flatten((args, kwargs)) if isinstance(each, torch.Tensor)]
        return (function if any(each.is_meta for each in tensors) else compiled)(*args, **kwargs)

    return run


def _forward_passes(model):
    """Yields (object, method name) for each method of a model or its nested models that runs layers of keras_vit."""
    if hasattr(model, "forward_passes"):
        for part in model.forward_passes():
            yield from [part] if isinstance(part, tuple) else _forward_passes(part)
        return
    nested = [layer for layer in arguments.model(model).layers if isinstance(layer, keras.Model)]
    if any(type(layer).__module__.startswith("keras_vit.") for layer in model.layers if layer not in nested):
        yield model, "call"
    else:
        for layer in nested:
            yield from _forward_passes(layer)
