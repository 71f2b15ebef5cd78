import os

import keras


def check_one_process():
    """Refuses to train in several processes of `torch.distributed`, which this package does not keep together.

    Keras applies each process's gradients to its own weights, wrapped by `DistributedDataParallel` or not: the models
    would part without a word, and all would write to one folder.

    Raises:
        RuntimeError: If this is one of several processes of PyTorch.

    Example:

    >>> check_one_process()
    """
    if keras.backend.backend() != "torch":
        return
    import torch  # noqa: TID251  Keras offers no way to it.

    distributed = torch.distributed
    if not distributed.is_available():
        return
    if distributed.is_initialized():
        found, size = "torch.distributed is initialized", distributed.get_world_size()
    elif distributed.is_torchelastic_launched():
        found, size = "torchrun started this process", int(os.environ.get("WORLD_SIZE", 1))
    else:
        return
    if size > 1:
        raise RuntimeError(
            f"Expected one process on the PyTorch backend. Received: {found} with a world size of {size}, and the "
            "processes would train models that part. Start one process alone, or set KERAS_BACKEND=jax and use "
            "keras.distribution.DataParallel() in one process for all devices."
        )
