"""The processes of one run: how they find each other, which one this is, and how they share values."""

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.distribution import torch_processes


def initialize(coordinator: str, num_processes: int, process_id: int) -> None:
    """Joins the processes of one run, on JAX or PyTorch; call it in each before anything else of Keras.

    `keras-vit train --processes` does so for a run on one machine. Returns when all processes have come.

    Args:
        coordinator: "HOST:PORT" of process 0, a free port that the others can reach.
        num_processes: Int of at least 1.
        process_id: Int from 0.

    Raises:
        ValueError: If an argument is out of range.
        RuntimeError: On TensorFlow, where Keras 3 cannot train in several processes.

    Example:

    >>> keras_vit.distribution.initialize("10.0.0.1:1234", num_processes=2, process_id=0)  # doctest: +SKIP
    """
    host, colon, port = str(coordinator).rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise arguments.invalid("coordinator", '"HOST:PORT"', coordinator)
    num_processes = arguments.positive_int("num_processes", num_processes)
    process_id = arguments.non_negative_int("process_id", process_id, num_processes - 1)
    backend = keras.backend.backend()
    if backend == "tensorflow":
        raise RuntimeError(
            "Expected the JAX or PyTorch backend for several processes (KERAS_BACKEND=jax): `fit` of Keras 3 fails in "
            "TensorFlow's MultiWorkerMirroredStrategy. Received: tensorflow"
        )
    if backend == "torch":
        torch_processes.initialize(coordinator, num_processes, process_id)
    else:
        keras.distribution.initialize(coordinator, num_processes, process_id)


def num_processes() -> int:
    """Returns the number of processes that train together; 1 without `initialize`."""
    backend = keras.backend.backend()
    if backend == "torch":
        return torch_processes.num_processes()
    if backend != "jax":
        return 1
    import jax  # Keras has no public way to ask.

    return jax.process_count()


def process_id() -> int:
    """Returns the number of this process, from 0."""
    backend = keras.backend.backend()
    if backend == "torch":
        return torch_processes.process_id()
    if backend != "jax":
        return 0
    import jax

    return jax.process_index()


def barrier() -> None:
    """Waits until all processes have come here."""
    if num_processes() == 1:
        return
    if keras.backend.backend() == "torch":
        torch_processes.barrier()
        return
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices("keras_vit")


def agree(number: int) -> int:
    """Returns the integer that process 0 gave; all processes must call it."""
    if num_processes() == 1:
        return number
    if keras.backend.backend() == "torch":
        return torch_processes.agree(number)
    from jax.experimental import multihost_utils

    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def first_in_process_0(function):
    """Calls a function in process 0, then in the others, such as one that makes or renames files they share."""
    if process_id() == 0:
        result = function()
        barrier()
        return result
    barrier()
    return function()


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """Returns the whole value of a variable; of one that is split over processes, only if all of them ask."""
    value = variable.value
    if getattr(value, "is_fully_addressable", True) or value.is_fully_replicated:
        return keras.ops.convert_to_numpy(variable)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(value, tiled=True))


def metrics_to_numpy(variables) -> list:
    """Returns the values of metrics for the images of all processes; all must call it."""
    if keras.backend.backend() == "torch" and num_processes() > 1:
        return [value.cpu().numpy() for value in torch_processes.sums(variables)]
    return [to_numpy(variable) for variable in variables]


def share_of_metrics(value):
    """Returns what this process restores of the value of a metric for all: PyTorch's processes add theirs up."""
    return np.zeros_like(value) if keras.backend.backend() == "torch" and process_id() else value


def on_one_device(model: keras.Model) -> keras.Model:
    """Returns the model, or a copy with whole weights if they are split over processes; all processes must call it."""
    if num_processes() == 1 or keras.backend.backend() != "jax":
        return model
    values = [to_numpy(variable) for variable in model.variables]
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        copy = type(model).from_config(model.get_config())
        for variable, value in zip(copy.variables, values, strict=True):
            variable.assign(value)
    finally:
        keras.distribution.set_distribution(distribution)
    return copy
