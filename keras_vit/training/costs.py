"""What a training takes, estimated before it begins: memory, time, and place on the disk."""

import os
import shutil
import time
from pathlib import Path

import keras
import numpy as np

from keras_vit.costs import parts_of
from keras_vit.models.graph import is_graph, nodes_before

# A step computes the outputs, and about twice as much on the way back.
STEP_PER_FORWARD = 3
# Images that the first look at the speed takes, and the seconds that a whole batch may take to be tried as well.
FEW_IMAGES, PATIENCE = 8, 2.0
# Checkpoints that `Resume` keeps, the one that is being written, and the model in the end.
CHECKPOINTS = 4


def activation_bytes(graph):
    """Estimates what the layers of a model leave in memory for one image, which training keeps for the way back.

    Args:
        graph: A functional or sequential `keras.Model`.

    Returns:
        Int; None where a layer's shapes are not known.

    Example:

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
            # Called more than once, or of any size.
            return None
        width = 2 if getattr(operation, "compute_dtype", "float32") in ("bfloat16", "float16") else 4
        total += width * sum(part.activations for part in parts)
    return total


def state_bytes(model):
    """The bytes of weights and of what the optimizer keeps of them, and of both together with gradients.

    Args:
        model: A built `keras.Model`; without an optimizer, one with two numbers for each weight is supposed.

    Returns:
        (bytes of a checkpoint, bytes in training).
    """
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
    """Computes a batch, or a few images of it where all take long, or are not many more, without training.

    Args:
        model: A `keras.Model`.
        batch: (images, ...) as arrays: with labels, the model is compiled and also computes its loss.
        replicas: Int, devices that share a batch.

    Returns:
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
    """The second call's time: the first compiles."""
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
    """Says why a run could not write to a folder.

    Args:
        out: Path of a folder, which may have to be made.
        needed: Int, bytes that it will write.

    Yields:
        Texts.
    """
    there = _nearest(out)
    if not there.is_dir():
        yield f"Expected `out` to be a folder, or one that can be made. Received: {str(out)!r}, where {there} is a file"
    elif not os.access(there, os.W_OK | os.X_OK):
        yield f"Expected `out` to be a folder that can be written to. Received: {str(out)!r}, and {there} cannot be"
    elif free_bytes(out) + (kept := sum(file.stat().st_size for file in Path(out).glob("checkpoints/*.npz"))) < needed:
        # Checkpoints that are there make room for the new ones.
        yield (
            f"Expected {size_text(needed - kept)} of free disk for the checkpoints in `out`. Received: "
            f"{size_text(free_bytes(out))} at {there}"
        )


def free_bytes(out):
    """What is free on the disk that a folder is on, or will be."""
    return shutil.disk_usage(_nearest(out)).free


def _nearest(out):
    """The folder itself, or the nearest above it that is there."""
    there = Path(out).absolute()
    while not there.exists():
        there = there.parent
    return there


def size_text(size):
    """Bytes in the words of a person.

    Example:

    >>> size_text(1_500_000), size_text(86e9)
    ('1.5 MB', '86 GB')
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            return f"{size:.0f} {unit}" if size >= 10 or unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def time_text(seconds):
    """Seconds in the words of a person.

    Example:

    >>> time_text(42), time_text(3000), time_text(90_000)
    ('42 seconds', '50 minutes', '25 hours')
    """
    for limit, divisor, unit in ((100, 1, "seconds"), (6000, 60, "minutes"), (float("inf"), 3600, "hours")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    raise AssertionError
