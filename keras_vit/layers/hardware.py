"""What layers ask about the machine, to compute a function the way that is fastest there."""

import functools
import platform
from pathlib import Path

import keras


@functools.cache
def has_gpu():
    """Whether there is an accelerator, a GPU as a rule."""
    if keras.backend.backend() == "torch":
        # Keras lists no devices of it.
        import torch

        return any(kind.is_available() for kind in (torch.cuda, torch.backends.mps, torch.xpu))
    return not keras.distribution.list_devices()[0].startswith("cpu")


@functools.cache
def processor():
    """What this machine tells of its processor, with its maker's name and on Linux its instructions."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()


def is_computed_on_cpu(x):
    """Whether a tensor is one of PyTorch on a CPU, computed now and not traced, for a compiler or other machines."""
    if keras.backend.backend() != "torch" or x.device.type != "cpu":
        return False
    import torch

    return not torch.compiler.is_compiling() and not torch.jit.is_tracing()
