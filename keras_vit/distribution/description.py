"""Computes the memory that a training step needs on each device."""

from typing import NamedTuple

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.console import text_table
from keras_vit.distribution.layouts import batch_parts
from keras_vit.models.losses import recognised_loss
from keras_vit.prediction.inputs import functional_graph


class Description(NamedTuple):
    """The memory, in bytes, that training needs on each device. `str` formats it as a table in MB.

    `temporary` is the memory of a training step for activations, gradients and copies of split variables. It is None if
    `describe` was called without a batch size.
    """

    parameters: int
    optimizer: int
    temporary: int | None = None

    def __str__(self):
        rows = [("parameters", self.parameters), ("optimizer state", self.optimizer)]
        if self.temporary is not None:
            rows.append(("activations, gradients", self.temporary))
        return text_table(["MB per device", ""], [[name, f"{size / 1e6:,.1f}"] for name, size in rows])


def describe(model: keras.Model, batch_size: int | None = None) -> Description:
    """Returns the memory that training a compiled model needs on each device, on JAX.

    Args:
        model: A compiled `keras.Model` with images as input. To describe training on several devices, call
            `keras.distribution.set_distribution` before you build the model.
        batch_size: Int, the number of images per step on all devices together. It must be a multiple of the number of
            parts into which the distribution splits a batch. With a batch size, the training step is compiled, which
            takes seconds to minutes. None describes only the variables.

    Raises:
        RuntimeError: On another backend than JAX.
        ValueError: If the model is not compiled, `batch_size` cannot be split into equal parts, or the model does not
            have one input of a fixed size and one output.

    Example:
    >>> print(keras_vit.distribution.describe(model, batch_size=1024))  # doctest: +SKIP
    """
    arguments.model(model)
    arguments.optional(arguments.positive_int, "batch_size", batch_size)
    if keras.backend.backend() != "jax":
        raise RuntimeError(f"Expected the JAX backend (KERAS_BACKEND=jax). Received: {keras.backend.backend()}")
    if getattr(model, "optimizer", None) is None:
        raise ValueError(f"Expected a compiled model. Received: {model.name!r}, which has no optimizer")
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    groups = model.variables, model.optimizer.variables
    sizes = [sum(variable.value.addressable_shards[0].data.nbytes for variable in group) for group in groups]
    if batch_size is None:
        return Description(*sizes)
    graph = functional_graph(model)
    if graph is None or len(graph.inputs) != 1 or len(graph.outputs) != 1 or None in graph.input_shape[1:]:
        raise arguments.invalid("model", "a model with one input of a fixed size and one output", model.name)
    import jax  # Keras has no public function that returns the memory of a training step.

    # Call the metrics before compiling, because they create their variables at the first call.
    outputs = tuple(graph.output_shape[1:])
    loss = recognised_loss(model.loss)
    labels, dtype = ((), "int32") if loss is not None and loss.kind == "sparse" else (outputs, "float32")
    model.compute_metrics(None, np.zeros((1, *labels), dtype), np.zeros((1, *outputs), "float32"))
    model.reset_metrics()
    distribution = keras.distribution.distribution()
    if batch_size % (parts := batch_parts()):
        raise arguments.invalid(
            "batch_size", f"a multiple of {parts}, because each batch is split into {parts} parts", batch_size
        )

    def array(shape, dtype):
        sharding = None if distribution is None else distribution.get_data_layout(shape).backend_layout
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    data = array((batch_size, *graph.input_shape[1:]), "float32"), array((batch_size, *labels), dtype)
    groups = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    state = tuple([variable.value for variable in group] for group in (*groups, model.metrics_variables))
    shardings = jax.tree.map(lambda value: value.sharding, state)
    step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, shardings))
    return Description(*sizes, step.lower(state, data).compile().memory_analysis().temp_size_in_bytes)
