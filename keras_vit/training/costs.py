"""The costs of a training, estimated before it begins: memory, time and disk."""

import os
import shutil
import time
from pathlib import Path

import keras
import numpy as np

from keras_vit.costs import parts_of
from keras_vit.models.graph import is_graph, nodes_before

# A step computes the outputs, and about twice as much for the gradients.
STEP_PER_FORWARD = 3
# Images of the first timing, and the seconds that a whole batch may take to be timed as well.
FEW_IMAGES, PATIENCE = 8, 2.0
# Checkpoints that `Resume` keeps, the one being written, and the final model.
CHECKPOINTS = 4


def activation_bytes(graph):
    """Estimates the activations that training a graph keeps for one image; None if a layer's shapes are not known.

    >>> activation_bytes(keras.Sequential([keras.Input((3,)), keras.layers.Dense(8)]))
    32
    """
    total = 0
    for operation, inputs in nodes_before(graph.outputs):
        if isinstance(operation, keras.layers.InputLayer):
            continue
        if is_graph(operation):
            within = activation_bytes(operation)
            if within is None:
                return None
            total += within
            continue
        shapes = {i: tuple(x.shape[1:]) for i, x in enumerate(inputs)}
        try:
            output = tuple(keras.tree.flatten(operation.output)[0].shape[1:])
            parts = parts_of(operation, shapes, output)
        except (AttributeError, TypeError, ValueError):
            # The layer is called more than once, or has unknown sizes.
            return None
        width = 2 if getattr(operation, "compute_dtype", "float32") in ("bfloat16", "float16") else 4
        total += width * sum(part.activations for part in parts)
    return total


def state_bytes(model):
    """(bytes of a checkpoint, bytes of weights, optimizer and gradients); an unknown optimizer has two moments."""
    weights, trained = (_bytes(part) for part in (model.weights, model.trainable_weights))
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built:
        kept = _bytes(optimizer.variables)
    else:
        kept = trained * (1 if getattr(optimizer, "momentum", None) is not None else 2)
        kept += trained * (bool(getattr(optimizer, "use_ema", False)))
    return weights + kept, weights + kept + trained


def _bytes(variables):
    return sum(int(np.prod(v.shape)) * (2 if "16" in str(v.dtype) else 4) for v in variables)


def forward(model, batch, replicas=1):
    """Computes a batch without training, or a few of its images if that is slow.

    `batch` is (images, ...) as arrays; with labels, the model is compiled. `replicas` devices share a batch. Returns
    (seconds of the whole batch, the loss or None).
    """
    size = len(batch[0])
    few = min(size, -(-FEW_IMAGES // replicas) * replicas)
    seconds, loss = _timed(model, tuple(part[:few] for part in batch))
    seconds *= size / few
    if size >= 4 * few and seconds < PATIENCE:
        # A few images do not fill a GPU.
        seconds, loss = _timed(model, batch)
    return seconds, loss


def _timed(model, batch):
    """(seconds, loss) of the second call; the first compiles."""
    for _ in range(2):
        started = time.perf_counter()
        if len(batch) == 1:
            model.predict_on_batch(batch[0])
            loss = None
        else:
            loss = float(model.test_on_batch(*batch, return_dict=True)["loss"])
        seconds = time.perf_counter() - started
    model.reset_metrics()
    return seconds, loss


def folder_problems(out, needed):
    """Yields why a run could not write `needed` bytes to a folder."""
    there = _nearest(out)
    if not there.is_dir():
        yield f"Expected `out` to be a folder, or one that can be made. Received: {str(out)!r}, where {there} is a file"
    elif not os.access(there, os.W_OK | os.X_OK):
        yield f"Expected `out` to be a folder that can be written to. Received: {str(out)!r}, and {there} cannot be"
    elif free_bytes(out) + (kept := sum(file.stat().st_size for file in Path(out).glob("checkpoints/*.npz"))) < needed:
        # The new checkpoints replace those that are there.
        yield (
            f"Expected {size_text(needed - kept)} of free disk for the checkpoints in `out`. Received: "
            f"{size_text(free_bytes(out))} at {there}"
        )


def free_bytes(out):
    """Free bytes of the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(_nearest(out)).free


def _nearest(out):
    """The folder itself, or its nearest parent that exists."""
    there = Path(out).absolute()
    while not there.exists():
        there = there.parent
    return there


def size_text(size):
    """Bytes in MB."""
    return f"{size / 1e6:,.1f} MB"
