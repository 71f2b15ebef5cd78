"""What a distributed training step needs of each device, read from the program that XLA compiles."""

import math
import re
from typing import NamedTuple

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.console import text_table
from keras_vit.distribution.processes import num_processes

_COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
_COLLECTIVE = re.compile(rf" = (.*?) ({'|'.join(_COLLECTIVES)})(?:-start)?\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")


class Description(NamedTuple):
    """What each device holds and sends, in bytes; `str` is a table in MB.

    `temporary` is what a step needs besides the variables: activations, gradients and gathered variables. `flops`
    counts the operations of one device. `collectives` maps a kind, such as "all-reduce", to (number, bytes of their
    results) in a step. The last three are None without a batch size.
    """

    parameters: int
    optimizer: int
    temporary: int | None = None
    flops: float | None = None
    collectives: dict | None = None

    def __str__(self):
        rows = [["parameters", self.parameters / 1e6], ["optimizer state", self.optimizer / 1e6]]
        if self.collectives is not None:
            rows.append(["activations, gradients", self.temporary / 1e6])
            rows += [[f"{kind} x {number}", size / 1e6] for kind, (number, size) in sorted(self.collectives.items())]
        return text_table(["MB per device", ""], [[name, f"{size:,.1f}"] for name, size in rows])


def describe(model: keras.Model, batch_size: int | None = None) -> Description:
    """Describes what the training of a compiled model takes on each device under the active distribution, on JAX.

    Args:
        model: A compiled `keras.Model` of images, built after `keras.distribution.set_distribution`.
        batch_size: Int, the images of a step on all devices together. The training step is compiled for it, which takes
            seconds to minutes. None: only the variables are described.

    Raises:
        RuntimeError: On another backend than JAX.
        ValueError: If the model is not compiled, or the devices do not divide `batch_size`.

    Example:

    >>> print(keras_vit.distribution.describe(model, batch_size=1024))  # doctest: +SKIP
    """
    if keras.backend.backend() != "jax":
        raise RuntimeError(f"Expected the JAX backend (KERAS_BACKEND=jax). Received: {keras.backend.backend()}")
    if getattr(model, "optimizer", None) is None:
        raise ValueError(f"Expected a compiled model. Received: {model.name!r}, which has no optimizer")
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    sizes = (_bytes(model.variables), _bytes(model.optimizer.variables))
    if batch_size is None:
        return Description(*sizes)
    compiled = compile_step(model, batch_size)
    analysis = compiled.cost_analysis()
    flops = (analysis[0] if isinstance(analysis, list) else analysis).get("flops")
    return Description(*sizes, compiled.memory_analysis().temp_size_in_bytes, flops, collectives(compiled.as_text()))


def compile_step(model, batch_size):
    """Compiles a training step of images and integer labels without running it; returns JAX's compiled function."""
    import jax  # Keras has no way to look at the compiled step.

    if num_processes() == 1:
        # Otherwise the step would create the variables of the metrics, and return more than it was given.
        model.compute_metrics(None, np.zeros(1, "int32"), np.zeros((1, *model.output_shape[1:]), "float32"))
        model.reset_metrics()
    inputs = (((batch_size, *model.input_shape[1:]), "float32"), ((batch_size,), "int32"))
    distribution = keras.distribution.distribution()
    parts = 1 if distribution is None else distribution.device_mesh.shape[0]
    if batch_size % parts:
        raise arguments.invalid("batch_size", f"a multiple of {parts}, the parts of a batch", batch_size)

    def array(shape, dtype, layout_of):
        layout = None if distribution is None else _sharding(layout_of())
        return jax.ShapeDtypeStruct(shape, dtype, sharding=layout)

    def variable(v):
        return array(v.shape, v.dtype, lambda: distribution.get_variable_layout(v))

    data = tuple(array(*x, lambda x=x: distribution.get_data_layout(x[0])) for x in inputs)
    groups = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    state = tuple([variable(v) for v in group] for group in (*groups, model.metrics_variables))
    out = None if distribution is None else (None, tuple([v.sharding for v in group] for group in state))
    return jax.jit(model.train_step, donate_argnums=0, out_shardings=out).lower(state, data).compile()


def collectives(program):
    """Returns {kind: (number, bytes of the results)} of the collectives in the text of a compiled program."""
    found = {}
    for results, kind in _COLLECTIVE.findall(program):
        size = sum(
            math.prod(map(int, filter(None, sides.split(",")))) * int(bits or 8) // 8
            for _, bits, sides in _ARRAY.findall(results)
        )
        number, total = found.get(kind, (0, 0))
        found[kind] = (number + 1, total + size)
    return found


def _bytes(variables):
    """Returns the bytes that one device holds of variables."""
    distribution, total = keras.distribution.distribution(), 0
    for variable in variables:
        shape = variable.shape
        if distribution is not None:
            shape = _sharding(distribution.get_variable_layout(variable)).shard_shape(shape)
        total += math.prod(shape) * np.dtype(variable.dtype).itemsize
    return total


def _sharding(layout):
    """Returns JAX's sharding of a layout; older versions of Keras have it already for an optimizer's variables."""
    return getattr(layout, "backend_layout", layout)
