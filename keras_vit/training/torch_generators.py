"""PyTorch's own random generators, from which Keras' Dropout draws there where it has no seed."""

import keras


def generator_states():
    """The states of PyTorch's generators, those of its GPUs too, by name; none on the other backends.

    Returns:
        Dict from names to NumPy arrays, each a copy.
    """
    if keras.backend.backend() != "torch":
        return {}
    import torch  # noqa: TID251  Keras offers no way to them.

    states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    return {f"torch/{i:05d}": state.numpy() for i, state in enumerate(states)}


def set_generator_states(states):
    """Undoes what has been drawn since `generator_states`.

    Args:
        states: Dict that holds what that function gave; on another backend it is passed over.
    """
    names = sorted(name for name in states if name.startswith("torch/"))
    if names and keras.backend.backend() == "torch":
        import torch  # noqa: TID251

        first, *others = (torch.from_numpy(states[name]) for name in names)
        torch.set_rng_state(first)
        torch.cuda.set_rng_state_all(others[: torch.cuda.device_count()])
