"""PyTorch's own random generators, from which Keras' layers without a seed draw on that backend."""

import keras


def generator_states():
    """The states of PyTorch's generators, also on GPUs: NumPy arrays by name, none on the other backends."""
    if keras.backend.backend() != "torch":
        return {}
    import torch  # noqa: TID251  Keras gives no access to them.

    states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    return {f"torch/{i:05d}": state.numpy() for i, state in enumerate(states)}


def set_generator_states(states):
    """Restores the states from `generator_states` that a dict holds among others."""
    names = sorted(name for name in states if name.startswith("torch/"))
    if names and keras.backend.backend() == "torch":
        import torch  # noqa: TID251

        first, *others = (torch.from_numpy(states[name]) for name in names)
        torch.set_rng_state(first)
        torch.cuda.set_rng_state_all(others[: torch.cuda.device_count()])
