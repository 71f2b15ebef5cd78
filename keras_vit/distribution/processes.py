"""Starts and joins the processes of one run, and shares values between them."""

import datetime
import os
import subprocess
import sys

import keras
import numpy as np

from keras_vit import arguments

# If another process does not answer within this time, PyTorch raises an error.
_TIMEOUT = datetime.timedelta(minutes=10)


def initialize(coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Connects the processes of one training run, on JAX or PyTorch.

    Call this function in each process before any other function of Keras. It returns when all processes have called it.
    Pass all three arguments or none. If you pass none, the function reads the environment variables that `torchrun`
    (PyTorch) or SLURM (JAX) sets for each process. If neither program started several processes, the function does
    nothing.

    Args:
        coordinator: "HOST:PORT", the address of process 0 with a free port that all processes can reach.
        num_processes: Int of at least 1, the number of processes in the run.
        process_id: Int from 0 to `num_processes - 1`, the number of this process.

    Raises:
        RuntimeError: On TensorFlow, where Keras 3 cannot train in several processes, or if `torchrun` started a process
            with the JAX backend.
        ValueError: If an argument is missing or invalid.

    Example:
    >>> keras_vit.distribution.initialize("10.0.0.1:1234", num_processes=2, process_id=0)  # doctest: +SKIP
    """
    backend, given = keras.backend.backend(), (coordinator, num_processes, process_id) != (None, None, None)
    by_torchrun = not given and int(os.environ.get("WORLD_SIZE", 1)) > 1
    # SLURM sets SLURM_STEP_NODELIST only in processes that `srun` started.
    by_slurm = int(os.environ.get("SLURM_NTASKS", 1)) > 1 and "SLURM_STEP_NODELIST" in os.environ
    if not (given or by_torchrun or by_slurm):
        return
    if given:
        host, colon, port = str(coordinator).rpartition(":")
        if not (host and colon and port.isdecimal()):
            raise arguments.invalid("coordinator", '"HOST:PORT"', coordinator)
        num_processes = arguments.positive_int("num_processes", num_processes)
        process_id = arguments.non_negative_int("process_id", process_id, num_processes - 1)
    if backend == "tensorflow":
        raise RuntimeError(
            "Expected the JAX or PyTorch backend for several processes (KERAS_BACKEND=jax): `fit` of Keras 3 fails in "
            "TensorFlow's MultiWorkerMirroredStrategy. Received: tensorflow"
        )
    if backend == "jax":
        if by_torchrun:
            raise RuntimeError(
                "Expected the PyTorch backend (KERAS_BACKEND=torch) under torchrun. Received: jax. Start a process "
                "without torchrun on each machine, with `coordinator`, `num_processes` and `process_id`."
            )
        import jax

        jax.distributed.initialize(coordinator, num_processes, process_id)
        return
    import torch

    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", process_id or 0)) % gpus)
    given = {"init_method": f"tcp://{coordinator}", "world_size": num_processes, "rank": process_id} if given else {}
    torch.distributed.init_process_group("nccl" if gpus else "gloo", timeout=_TIMEOUT, **given)


def launch(command: list, num_processes: int) -> None:
    """Runs a `keras-vit` command in several PyTorch processes of this machine, with `torchrun`.

    Args:
        command: The command-line arguments of `keras-vit`, a list of strings.
        num_processes: Int of at least 1, the number of processes. Each process uses one GPU.

    Raises:
        RuntimeError: On another backend than PyTorch, or if a process failed. `torchrun` then ends all processes.
    """
    arguments.positive_int("num_processes", num_processes)
    arguments.several("command", command)
    if keras.backend.backend() != "torch":
        raise RuntimeError(
            "Expected the PyTorch backend (KERAS_BACKEND=torch) for several processes on one machine. Received: "
            f"{keras.backend.backend()}, which trains on all devices of a machine in one process. Start one process."
        )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
    status = subprocess.run([*torchrun, "-m", "keras_vit.cli", *command], check=False).returncode
    if status:
        raise RuntimeError(f"torchrun ended with status {status}. The same command resumes at the last checkpoint.")


def torch_group():
    """Returns the module `torch.distributed` if several PyTorch processes train together, else None."""
    if keras.backend.backend() != "torch":
        return None
    import torch.distributed

    group = torch.distributed
    return group if group.is_available() and group.is_initialized() and group.get_world_size() > 1 else None


def num_processes() -> int:
    """Returns the number of processes that train together, or 1 if `initialize` was not called."""
    return _number_and_count()[1]


def process_id() -> int:
    """Returns the number of this process among the processes that train together, counted from 0."""
    return _number_and_count()[0]


def _number_and_count():
    if group := torch_group():
        return group.get_rank(), group.get_world_size()
    if keras.backend.backend() != "jax":
        return 0, 1
    import jax  # Keras has no public function that returns the number of processes.

    return jax.process_index(), jax.process_count()


def agree(number: int) -> int:
    """Returns in every process the `number` that process 0 passed. All processes must call this function."""
    if group := torch_group():
        found = [number]
        group.broadcast_object_list(found, src=0)
        return found[0]
    if num_processes() == 1:
        return number
    from jax.experimental import multihost_utils

    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def first_in_process_0(function):
    """Calls `function` in process 0, for example to rename shared files, and then in all other processes."""
    result = function() if process_id() == 0 else None
    # All other processes wait until process 0 has called the function.
    agree(0)
    return result if process_id() == 0 else function()


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """Returns the whole value of a variable. If it is split over processes, all processes must call this function."""
    value = variable.value
    if getattr(value, "is_fully_addressable", True) or value.is_fully_replicated:
        return keras.ops.convert_to_numpy(variable)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(value, tiled=True))


def summed(variables):
    """Returns the values of variables, summed over all PyTorch processes. All processes must call this function."""
    values = [variable.value for variable in variables]
    if group := torch_group():
        values = [value.detach().clone() for value in values]
        for value in values:
            group.all_reduce(value)
    return values


def on_one_device(model: keras.Model) -> keras.Model:
    """Returns the model, or in several JAX processes an unsplit copy. All processes must call this function."""
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
