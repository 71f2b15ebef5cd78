"""Trains a small ViT for 30 steps on one device or on several, as one process of a run.

`python -m tests.distribution.curve PATH [COORDINATOR NUM_PROCESSES PROCESS_ID]`; torchrun starts it without the last
three. Process I writes the losses of its part of each batch, and the history, to PATH.I.
"""

import contextlib
import json
import sys

import keras
import numpy as np

from keras_vit import distribution, training
from tests.distribution.tensorflow_cases import two_devices
from tests.tiny import Losses, build

STEPS, BATCH = 30, 8


def scope(backend, on_several):
    """Returns the context in which the model is built."""
    if not on_several or backend == "torch":
        return contextlib.nullcontext()
    # Keras' mesh, with the axis names of its documents.
    return (
        two_devices() if backend == "tensorflow" else distribution.fsdp(_mesh(), 16, auto_shard_dataset=False).scope()
    )


def _mesh():
    devices = keras.distribution.list_devices()
    return keras.distribution.DeviceMesh((len(devices) // 2, 2), ["batch", "model"], devices)


def train(on_several):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(STEPS * BATCH, 16, 16, 3)).astype("float32")
    labels = rng.integers(5, size=len(images))
    backend = keras.backend.backend()
    shards = distribution.num_processes()
    with scope(backend, on_several):
        keras.utils.set_random_seed(distribution.process_id() if backend == "torch" else 0)
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # The gradient of a key's bias is rounding noise. With a smaller epsilon, Adam would amplify it.
        model.compile(training.AdamW(1e-3, epsilon=1e-6), loss, metrics=["accuracy"])
        distribution.synchronize(model)
        kept = Losses()
        # The part of each batch that this process reads.
        rows = slice(distribution.process_id(), None, shards)
        options = {"batch_size": BATCH // shards, "shuffle": False, "verbose": 0}
        callbacks = [distribution.ReduceMetrics(), kept]
        history = model.fit(images[rows], labels[rows], callbacks=callbacks, **options).history
        memory = distribution.describe(model, BATCH) if backend == "jax" else ()
    return {"losses": kept.losses, "history": history, "memory": memory}


if __name__ == "__main__":
    path, *joined = sys.argv[1:]
    if joined and joined[0] != "devices":
        distribution.initialize(joined[0], int(joined[1]), int(joined[2]))
    else:
        distribution.initialize()
    found = train(on_several=bool(joined) or distribution.num_processes() > 1)
    with open(f"{path}.{distribution.process_id()}", "w") as file:
        json.dump(found, file)
