"""Starts the processes of one run on a machine and watches them, or finds out which of them this one is."""

import json
import os
import socket
import subprocess
import sys
import time

from keras_vit import arguments
from keras_vit.distribution.processes import initialize

# Seconds that the others get to end by themselves when one has failed.
PATIENCE = 20


def join(coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Joins the processes of a run, by `initialize`; what is not given is read from the environment.

    Understood are the variables of torchrun (MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK), Keras
    (KERAS_DISTRIBUTION_JOB_ADDRESSES, ..._NUM_PROCESSES, ..._PROCESS_ID), TensorFlow (TF_CONFIG) and SLURM
    (SLURM_NTASKS, SLURM_PROCID; the coordinator comes from the others or the argument). Without any, does nothing.

    Args:
        coordinator: "HOST:PORT" of process 0.
        num_processes: Int of at least 1.
        process_id: Int from 0.

    Raises:
        ValueError: If only some of the three are known, or one is out of range.
        RuntimeError: On TensorFlow.
    """
    given = (coordinator, num_processes, process_id)
    found = [a if a is not None else b for a, b in zip(given, from_environment(os.environ), strict=True)]
    if found[1:] in ([None, None], [1, None], [1, 0]):
        return
    if None in found:
        names = ("coordinator", "num_processes", "process_id")
        known = ", ".join(f"{name}={value}" for name, value in zip(names, found, strict=True) if value is not None)
        raise ValueError(
            f"Expected {', '.join(names)}, as arguments or from torchrun, SLURM, TF_CONFIG or Keras. Received: {known}"
        )
    initialize(*found)


def from_environment(environment) -> tuple:
    """Returns (coordinator, number of processes, number of this one) as launchers set them; None for the unknown."""

    def number(name):
        return int(environment[name]) if environment.get(name) else None

    coordinator = None
    if environment.get("MASTER_ADDR"):
        coordinator = f"{environment['MASTER_ADDR']}:{environment.get('MASTER_PORT', '29500')}"
    if environment.get("WORLD_SIZE"):
        return coordinator, number("WORLD_SIZE"), number("RANK")
    if environment.get("KERAS_DISTRIBUTION_NUM_PROCESSES"):
        addresses = environment.get("KERAS_DISTRIBUTION_JOB_ADDRESSES", "").split(",")
        count, this = (number(f"KERAS_DISTRIBUTION_{name}") for name in ("NUM_PROCESSES", "PROCESS_ID"))
        return addresses[0] or coordinator, count, this
    if environment.get("TF_CONFIG"):
        config = json.loads(environment["TF_CONFIG"])
        workers = config.get("cluster", {}).get("worker", [])
        if workers:
            return workers[0], len(workers), int(config.get("task", {}).get("index", 0))
    return coordinator, number("SLURM_NTASKS"), number("SLURM_PROCID")


def launch(command: list, num_processes: int) -> None:
    """Runs a command in several processes on this machine; if one fails, says which and stops the others.

    Args:
        command: The arguments of `keras-vit`; each process gets `--process-id` and `--coordinator` besides.
        num_processes: Int of at least 1.

    Raises:
        RuntimeError: If a process failed. The others end within about 20 seconds.
    """
    arguments.positive_int("num_processes", num_processes)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = []
    try:
        for i in range(num_processes):
            # A PyTorch process takes the GPU of its rank; a JAX process would take all that it sees.
            environment = {**os.environ, "LOCAL_RANK": str(i)}
            if environment.get("KERAS_BACKEND") == "jax":
                environment.setdefault("CUDA_VISIBLE_DEVICES", str(i))
            parts = [*command, "--process-id", str(i), "--coordinator", address]
            started.append(subprocess.Popen([sys.executable, "-m", "keras_vit.cli", *parts], env=environment))
        while None in (statuses := [process.poll() for process in started]) or any(statuses):
            if any(statuses):
                # The one that a signal ended, if any: others fail only because it is gone.
                first = min((i for i, status in enumerate(statuses) if status), key=lambda i: statuses[i])
                raise RuntimeError(
                    f"Process {first} of {num_processes} ended with status {statuses[first]}; the others were stopped. "
                    "The same command goes on at the last checkpoint."
                )
            time.sleep(0.2)
    finally:
        _stop(started)


def _stop(processes):
    """Ends processes: by a signal, and by force if they do not answer."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
