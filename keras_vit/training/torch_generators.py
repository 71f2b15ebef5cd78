"""PyTorch's global state: its random generators, which Keras' unseeded Dropout uses, and its processes."""

import os

import keras


def generator_states():
    """Returns copies of PyTorch's CPU and GPU generator states, by name; {} on other backends."""
    if keras.backend.backend() != "torch":
        return {}
    import torch  # noqa: TID251  Keras has no way to read them.

    states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    return {f"torch/{i:05d}": state.numpy() for i, state in enumerate(states)}


def set_generator_states(states):
    """Restores the result of `generator_states`; does nothing on other backends."""
    names = sorted(name for name in states if name.startswith("torch/"))
    if names and keras.backend.backend() == "torch":
        import torch  # noqa: TID251

        first, *others = (torch.from_numpy(states[name]) for name in names)
        torch.set_rng_state(first)
        torch.cuda.set_rng_state_all(others[: torch.cuda.device_count()])


def check_one_process():
    """Raises if this is one of several PyTorch processes, where Keras would silently train separate models."""
    if keras.backend.backend() != "torch":
        return
    import torch  # noqa: TID251

    distributed, size = torch.distributed, 1
    if distributed.is_available() and distributed.is_initialized():
        size = distributed.get_world_size()
    elif distributed.is_available() and distributed.is_torchelastic_launched():
        size = int(os.environ.get("WORLD_SIZE", 1))
    if size > 1:
        raise RuntimeError(
            f"Expected one process on the PyTorch backend. Received: {size}, started by torch.distributed or torchrun, "
            "and each would train a separate model. Start one process alone, or set KERAS_BACKEND=jax and use "
            "keras.distribution.DataParallel() in one process for all devices."
        )
