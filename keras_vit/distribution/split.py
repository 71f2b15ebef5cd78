"""Splits a training run over devices by the name of a method."""

import contextlib
from typing import NamedTuple

import keras

from keras_vit import arguments
from keras_vit.distribution.layouts import batch_parts, data_parallel, device_mesh, fsdp, layout_map, tensor_parallel
from keras_vit.distribution.processes import num_processes, process_id

KINDS = ("data", "fsdp", "tensor", "fsdp+tensor")


class Split(NamedTuple):
    """The split of a batch into `parts`, one for each copy of the model, which are read in `num_shards` shards."""

    parts: int = 1
    num_shards: int = 1
    shard_index: int = 0


@contextlib.contextmanager
def distributed(kind: str | None, model_devices: int | None = None):
    """Makes a context in which models are built and trained on several devices; its value is a `Split`.

    Args:
        kind: "data": each device has the whole model and a part of each batch. "fsdp": the same, but each device stores
            only a part of each large variable. "tensor": groups of `model_devices` devices share one copy of the
            blocks. "fsdp+tensor": both. None: one device.
        model_devices: Int; None: all devices with "tensor", 2 with "fsdp+tensor".

    JAX supports all kinds, on all devices of all processes. TensorFlow supports "data" on the devices of one machine,
    with `tf.distribute.MirroredStrategy`. PyTorch supports "data", with one device for each process.

    Raises:
        ValueError: If `kind` is unknown, or `model_devices` does not divide the devices.
        RuntimeError: If the backend does not support `kind`; the message names a backend that does.
    """
    if kind is None:
        if num_processes() > 1:
            raise arguments.invalid("distribution", f"one of {', '.join(KINDS)} for several processes", kind)
        yield Split()
        return
    arguments.choice("distribution", kind, KINDS)
    if model_devices is not None and "tensor" not in kind:
        raise arguments.invalid("model_devices", f"None with distribution={kind!r}", model_devices)
    backend = keras.backend.backend()
    if kind != "data" and backend != "jax":
        raise RuntimeError(
            f"Expected the JAX backend (KERAS_BACKEND=jax) for distribution={kind!r}; {backend} has 'data'. "
            f"Received: {backend}"
        )
    if backend == "tensorflow":
        import tensorflow as tf  # Keras 3 trains on several devices only within its strategy.

        strategy = tf.distribute.MirroredStrategy()
        with strategy.scope():
            yield Split(strategy.num_replicas_in_sync)
    elif backend == "torch":
        yield Split(num_processes(), num_processes(), process_id())
    else:
        # Each process reads only its part of the data.
        options, devices = {"auto_shard_dataset": False}, len(keras.distribution.list_devices())
        if model_devices is None:
            model_devices = {"tensor": devices, "fsdp+tensor": 2}.get(kind, 1)
        if devices % arguments.positive_int("model_devices", model_devices):
            raise arguments.invalid("model_devices", f"a divisor of {devices}, the number of devices", model_devices)
        mesh = device_mesh(model_devices)
        if "fsdp" in kind:
            layouts = fsdp(mesh, layouts=layout_map(mesh) if "tensor" in kind else None, **options)
        else:
            layouts = {"data": data_parallel, "tensor": tensor_parallel}[kind](mesh, **options)
        with layouts.scope():
            parts = batch_parts()
            # Processes whose devices share one copy of the model read the same images.
            shards = min(num_processes(), parts)
            yield Split(parts, shards, process_id() * shards // num_processes())
