import os

import keras

from keras_vit.distribution import torch_processes
from keras_vit.distribution.processes import num_processes
from keras_vit.distribution.replicas import clip_over_replicas, spread_seeds_over_replicas


def synchronize(model: keras.Model) -> keras.Model:
    """Makes a compiled model compute on several devices what it computes on one; call it before `fit`.

    On PyTorch, the processes of `initialize` then train one model: gradients, loss and metrics are those of all, and
    each draws other random masks. On TensorFlow, within the scope of a `tf.distribute` strategy, the gradient is
    clipped by the norm for the whole batch, and each replica draws other random masks. On JAX there is nothing to do.

    Returns the model.

    Raises:
        ValueError: If the model is not compiled and built, or TensorFlow's replicas cannot share its optimizer.

    Example:

    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile(keras_vit.training.AdamW(1e-3), loss)  # doctest: +SKIP
    >>> keras_vit.distribution.synchronize(model).fit(data)  # doctest: +SKIP
    """
    backend = keras.backend.backend()
    if backend == "torch" and num_processes() > 1:
        torch_processes.synchronize(model)
    elif backend == "tensorflow" and model.distribute_strategy.num_replicas_in_sync > 1:
        clip_over_replicas(model.optimizer)
        spread_seeds_over_replicas(model)
    return model


def spread_seeds(model):
    """Lets each PyTorch process draw other random numbers, from seeds that follow from those of process 0."""
    if keras.backend.backend() == "torch":
        torch_processes.spread_seeds(model)


def check_synchronized(model):
    """Raises in one of several PyTorch processes that would each train a separate model."""
    if keras.backend.backend() != "torch":
        return
    import torch.distributed

    size = num_processes()
    if size == 1 and torch.distributed.is_available() and torch.distributed.is_torchelastic_launched():
        size = int(os.environ.get("WORLD_SIZE", 1))
    if size > 1 and not torch_processes.is_synchronized(model):
        raise RuntimeError(
            f"Expected a model that {size} PyTorch processes train together. Received: {model.name!r}, of which each "
            "would train its own. Call keras_vit.distribution.initialize(...) before building it and "
            "keras_vit.distribution.synchronize(model) after `compile`, or start one process alone."
        )
