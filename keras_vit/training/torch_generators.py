"""PyTorch's global random generators, which Keras' unseeded Dropout uses."""

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
