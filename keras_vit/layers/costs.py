"""Counts the multiply-adds of a layer's call on one image, and the activations that training keeps for the gradient."""

import math
import re
from typing import NamedTuple

import keras


class Step(NamedTuple):
    """One step of a call: its name, its multiply-adds, and the number of values that training keeps for its gradient.

    The multiply-adds are None if they are unknown.
    """

    name: str
    multiply_adds: int | None
    activations: int


def _classes(pattern):
    """Returns the classes in `keras.layers` whose names match a pattern."""
    return tuple(kind for name, kind in vars(keras.layers).items() if re.fullmatch(pattern, name))


# (layer classes, function that returns the multiply-adds for one output value). In a grouped convolution, the input
# axis of the kernel has the channels of one group, so the function is correct for grouped convolutions too. With LoRA,
# Keras multiplies the two LoRA factors once per batch. The product of the factors is not counted.
PRODUCTS = (
    (keras.layers.Dense, lambda layer, x: x.shape[-1]),
    (_classes("DepthwiseConv[12]D"), lambda layer, x: math.prod(layer.kernel.shape[:-2])),
    (_classes("Conv[123]D"), lambda layer, x: math.prod(layer.kernel.shape[:-1])),
)
# At inference, the layers in VIEWS return their input, unchanged or reshaped. The layers in FREE have no multiply-adds,
# because only matrix products and convolutions are counted.
VIEWS = _classes("Identity|Flatten|Reshape|ActivityRegularization|Gaussian.*|.*Dropout|Random(?!Crop).*")
FREE = VIEWS + _classes(
    "(Batch|Group|Layer|RMS|Unit)?Normalization|.*Pooling[123]D|Activation|.*ReLU|ELU|Softmax|Add|Average|Concatenate|"
    "Maximum|Minimum|Multiply|Subtract|(Cropping|UpSampling|ZeroPadding)[123]D|CenterCrop|RandomCrop|Rescaling|"
    "Resizing|Permute|RepeatVector|Embedding|Masking"
)
# Operations of `keras.ops` that add no stored activations. Their output is a view of the input, or training stores the
# output and frees the input, so that the number of stored values does not change.
VIEW_OPERATIONS = (
    "BroadcastTo|Cast|ExpandDims|GetItem|Pad|Relu|Reshape|Softmax|Split|Squeeze|StopGradient|Transpose|Unstack|Where"
)
# These operations have multiply-adds, but this module has no formula for them. Their multiply-adds are None (unknown).
UNKNOWN_OPERATIONS = (
    ".*(Conv|[Dd]ot|Einsum|FFT|STFT|Cholesky|Solve).*|Correlate|Cross|Det|Eigh?|Inner|Inv|Kron|Lstsq|LuFactor|Qr|SVD"
)


def operation_steps(operation, args, kwargs, output):
    """Returns the `Step`s of a layer or `keras.Operation` that is called on symbolic tensors and returns `output`."""
    x, kind = _tensors((args, kwargs))[0], type(operation).__name__
    if hasattr(operation, "cost_steps"):
        steps = operation.cost_steps(x.shape, **kwargs)
        if steps is not None:
            return [Step(*step) for step in steps]
        if getattr(operation, "adds_up", False):
            return _steps_inside(operation, args, kwargs)
    size = math.prod(output.shape[1:])
    if not isinstance(operation, keras.layers.Layer):
        products = None if re.fullmatch(UNKNOWN_OPERATIONS, kind) else size * x.shape[-1] if kind == "Matmul" else 0
        return [Step("", products, 0 if re.fullmatch(VIEW_OPERATIONS, kind) or "float" not in output.dtype else size)]
    for kinds, count in PRODUCTS:
        if isinstance(operation, kinds):
            # If the layer has an activation, training keeps the input of the activation too.
            copies = 1 if operation.activation in (None, keras.activations.linear) else 2
            return [Step("", size * count(operation, x), copies * size)]
    if hasattr(operation, "cost_steps"):
        return [Step("", size * math.prod(operation.kernel.shape[:-1]) if hasattr(operation, "kernel") else 0, size)]
    copies = 0 if isinstance(operation, (*VIEWS, keras.layers.ReLU)) else 1
    # In training, batch normalization also keeps its input minus the mean.
    copies += isinstance(operation, keras.layers.BatchNormalization)
    return [Step("", 0 if isinstance(operation, FREE) else None, copies * size)]


def total(steps):
    """Returns the sum of the multiply-adds of all steps, or None if the multiply-adds of one step are unknown."""
    products = [step.multiply_adds for step in steps]
    return None if None in products else sum(products)


def _steps_inside(layer, args, kwargs):
    """Returns the steps of all layers and operations inside the `call` of `layer`."""
    given = {id(x): keras.Input(batch_shape=x.shape, dtype=x.dtype) for x in _tensors((args, kwargs))}
    args, kwargs = keras.tree.map_structure(lambda x: given.get(id(x), x), (args, kwargs))
    steps, without_gradient = [], set()

    def record(operation, *args, **kwargs):
        outputs = operation(*args, **kwargs)
        flat, kind = keras.tree.flatten(outputs), type(operation).__name__
        name = operation.name if isinstance(operation, keras.layers.Layer) else kind.lower()
        steps_here = operation_steps(operation, args, kwargs, flat[0])
        inputs = [x for x in _tensors((args, kwargs)) if "float" in x.dtype and id(x) not in without_gradient]
        if kind == "StopGradient" or not inputs:
            without_gradient.update(map(id, flat))
            steps_here = [step._replace(activations=0) for step in steps_here]
        steps.extend(step._replace(name=f"{name}/{step.name}".rstrip("/")) for step in steps_here)
        return outputs

    graph = keras.Model(list(given.values()), layer.call(*args, **kwargs))
    keras.models.clone_model(graph, clone_function=lambda operation: operation, call_function=record)
    return [step for step in steps if step[1:] != (0, 0)]


def _tensors(structure):
    return [x for x in keras.tree.flatten(structure) if isinstance(x, keras.KerasTensor)]
