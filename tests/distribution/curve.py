"""Trains a small ViT for 30 steps on one device of JAX, or as one process of a run on several.

`python -m tests.distribution.curve PATH [COORDINATOR NUM_PROCESSES PROCESS_ID]`. Process I writes the losses of its
part of each batch, and the history, to PATH.I.
"""

import contextlib
import json
import sys

import keras
import numpy as np

from keras_vit import distribution, training
from tests.tiny import Losses, build

STEPS, BATCH = 30, 8


def scope():
    """Returns the context in which a run on several devices builds its model."""
    devices = keras.distribution.list_devices()
    # Keras' mesh, with the axis names of its documents.
    mesh = keras.distribution.DeviceMesh((len(devices) // 2, 2), ["batch", "model"], devices)
    return distribution.fsdp(mesh, 16, auto_shard_dataset=False).scope()


def train(on_several):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(STEPS * BATCH, 16, 16, 3)).astype("float32")
    labels = rng.integers(5, size=len(images))
    shards = distribution.num_processes()
    with scope() if on_several else contextlib.nullcontext():
        keras.utils.set_random_seed(0)
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
        memory = distribution.describe(model, BATCH)
    return {"losses": kept.losses, "history": history, "memory": memory}


if __name__ == "__main__":
    path, *joined = sys.argv[1:]
    if joined:
        distribution.initialize(joined[0], int(joined[1]), int(joined[2]))
    found = train(on_several=bool(joined))
    with open(f"{path}.{distribution.process_id()}", "w") as file:
        json.dump(found, file)
