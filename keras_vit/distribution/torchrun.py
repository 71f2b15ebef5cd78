import subprocess
import sys

import keras

from keras_vit import arguments


def launch(command: list, num_processes: int) -> None:
    """Runs a `keras-vit` command in several PyTorch processes of this machine, with `torchrun`.

    Args:
        command: The arguments of `keras-vit`.
        num_processes: Int of at least 1; a process takes one GPU.

    Raises:
        RuntimeError: If a process failed, after which `torchrun` ends all processes, or on another backend.
    """
    arguments.positive_int("num_processes", num_processes)
    if keras.backend.backend() != "torch":
        raise RuntimeError(
            "Expected the PyTorch backend (KERAS_BACKEND=torch) for several processes on one machine. Received: "
            f"{keras.backend.backend()}, which trains on all devices of a machine in one process. Leave them out."
        )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
    status = subprocess.run([*torchrun, "-m", "keras_vit.cli", *command], check=False).returncode
    if status:
        raise RuntimeError(f"torchrun ended with status {status}. The same command resumes at the last checkpoint.")
