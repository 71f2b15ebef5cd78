"""Estimates the memory, time and disk space of a training run before it starts."""

import os
import shutil
import time
from pathlib import Path

import numpy as np

from keras_vit.models.profile import profile
from keras_vit.training.checkpoints import CheckpointSlots

# The gradients take about twice the time of the forward pass.
STEP_PER_FORWARD = 3
# Images for the first timing, and the longest time in seconds at which a full batch is timed too.
FEW_IMAGES, PATIENCE = 8, 2.0
# The checkpoints that `Resume` keeps, the one being written, and the final model.
CHECKPOINTS = 4


def activation_bytes(model, image_size):
    """Estimates the bytes of activations that training keeps per image; None if the layers do not tell."""
    try:
        return profile(model, image_size).activation_bytes
    except (AttributeError, TypeError, ValueError):
        return None


def state_bytes(model):
    """Returns the bytes of (checkpoint, weights + optimizer + gradients), with two moments for an unknown optimizer."""
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
    """Returns (seconds, loss or None) of a batch without training, extrapolated from a few images if it is slow."""
    size, loss = len(batch[0]), None
    few = min(size, -(-FEW_IMAGES // replicas) * replicas)
    for count in (few, size):
        part = tuple(array[:count] for array in batch)
        # The first call compiles.
        for _ in range(2):
            started = time.perf_counter()
            if len(part) == 1:
                model.predict_on_batch(part[0])
            else:
                loss = float(model.test_on_batch(*part, return_dict=True)["loss"])
            seconds = (time.perf_counter() - started) * size / count
        # A few images do not fill a GPU.
        if size < 4 * few or seconds >= PATIENCE:
            break
    model.reset_metrics()
    return seconds, loss


def folder_problems(out, needed):
    """Yields reasons why a run could not write `needed` bytes to a folder."""
    there, free = _nearest(out), free_bytes(out)
    # New checkpoints replace the existing ones.
    needed -= sum(path.stat().st_size for path in CheckpointSlots(Path(out, "checkpoints")).paths())
    if not there.is_dir():
        yield f"Expected `out` to be a folder, or one that can be made. Received: {str(out)!r}, where {there} is a file"
    elif not os.access(there, os.W_OK | os.X_OK):
        yield f"Expected `out` to be a folder that can be written to. Received: {str(out)!r}, and {there} cannot be"
    elif free < needed:
        yield (
            f"Expected {size_text(needed)} of free disk for the checkpoints in `out`. Received: "
            f"{size_text(free)} at {there}"
        )


def free_bytes(out):
    """Returns the free bytes of a folder's disk; the folder need not exist yet."""
    return shutil.disk_usage(_nearest(out)).free


def _nearest(out):
    """Returns the folder, or its nearest existing parent."""
    path = Path(out).absolute()
    return next(there for there in (path, *path.parents) if there.exists())


def size_text(size):
    """Formats bytes as MB."""
    return f"{size / 1e6:,.1f} MB"
