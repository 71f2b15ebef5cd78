"""Reads the first batches of anything that `model.fit` takes."""

import itertools
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.models.batches import is_arrays, num_batches, sliced, to_numpy

# Enough for bright and dark images, and quick to read.
BATCHES = 2


class Data(NamedTuple):
    """What the first batches of a dataset tell; None for what they do not."""

    images: np.ndarray | None  # of the batches read; None if the input is no array
    labels: np.ndarray | None
    first: tuple  # the first batch, (x,), (x, y) or (x, y, sample_weight)
    batch_size: int
    num_images: int | None  # of an epoch
    steps: float | None  # of an epoch; math.inf if it never ends
    class_names: list  # may be empty
    num_classes: int | None
    all_labels: np.ndarray | None  # of all images, if the dataset has them


def look(data, batch_size=32):
    """Reads the first batches of anything that `model.fit` takes and that can be read again; returns `Data`.

    >>> look((np.zeros((5, 8, 8, 3)), np.array([0, 1, 0, 1, 2])), batch_size=2).steps
    3
    """
    arrays = is_arrays(data, (2, 3))
    if arrays:
        parts = tuple(map(to_numpy, data))
        if len({len(part) for part in parts}) != 1:
            raise ValueError(f"Expected as many labels as images. Received: {[len(part) for part in parts]}")
        batches = sliced(parts, batch_size)
    elif isinstance(data, keras.utils.PyDataset):
        batches = (data[i] for i in itertools.count() if data.num_batches is None or i < data.num_batches)
    elif hasattr(data, "__iter__") and not hasattr(data, "__next__"):
        batches = iter(data)
    else:
        raise ValueError(
            "Invalid value received for argument `data`. Expected arrays (images, labels), a tf.data.Dataset, a "
            f"PyDataset or another iterable of batches that can be read again. Received: {type(data).__name__}"
        )
    # Not the last batch, which would make the next iteration of a dataset of `keras_vit.data` another epoch.
    steps = -(-len(parts[0]) // batch_size) if arrays else num_batches(data)
    few = BATCHES if steps is None else min(BATCHES, max(1, steps - 1))
    found = [_parts(batch) for batch in itertools.islice(batches, int(few))]
    if not found or not len(keras.tree.flatten(found[0][0])[0]):
        raise ValueError("Invalid value received for argument `data`. Expected a batch of images. Received: none")
    # Attributes of the datasets of `keras_vit.data`.
    num_images = len(parts[0]) if arrays else getattr(data, "num_images", None)
    all_labels = parts[1] if arrays else getattr(data, "file_labels", None)
    return Data(
        images=_joined([batch[0] for batch in found]),
        labels=_joined([batch[1] for batch in found if len(batch) > 1]),
        first=found[0],
        batch_size=len(keras.tree.flatten(found[0][0])[0]),
        num_images=num_images,
        steps=steps,
        class_names=list(getattr(data, "class_names", None) or []),
        num_classes=getattr(data, "num_classes", None),
        all_labels=None if all_labels is None else to_numpy(all_labels),
    )


def _parts(batch):
    """A batch as a tuple (x,), (x, y) or (x, y, sample_weight), of arrays."""
    batch = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    return tuple(keras.tree.map_structure(to_numpy, part) for part in batch)


def _joined(parts):
    """The batches' arrays as one; the first if shapes differ; None if there are no arrays."""
    if not parts or not all(isinstance(part, np.ndarray) for part in parts):
        return None
    if len({part.shape[1:] for part in parts}) != 1:
        return parts[0]
    return np.concatenate(parts)
