"""Reads and checks the first batches of anything that `model.fit` takes."""

import itertools
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.config import find_normalization
from keras_vit.prediction.inputs import check_values, num_batches, takes, to_numpy
from keras_vit.training.epochs import is_arrays
from keras_vit.training.labels_and_loss import label_doubts, label_problems, task_problems

# The number of batches to read: enough to see bright and dark images.
BATCHES = 2


class Data(NamedTuple):
    """Facts about a dataset from its first batches; None if unknown."""

    images: np.ndarray | None  # of the batches read; if the model has several inputs, its only input of rank 4
    labels: np.ndarray | dict | list | None  # of the batches read, for each output
    first: tuple  # the first batch, (x,), (x, y) or (x, y, sample_weight)
    batch_size: int
    full: bool  # True if all batches of an epoch are known to have the same size
    num_images: int | None  # images per epoch
    steps: float | None  # batches per epoch; math.inf if the data never ends
    class_names: list  # may be empty
    num_classes: int | None
    all_labels: np.ndarray | None  # labels of all images, if the dataset has them


def look(data, batch_size=32):
    """Returns `Data` about the first batches of anything that `model.fit` takes and that can be read again."""
    arrays = isinstance(data, (tuple, list)) and len(data) in (2, 3) and is_arrays(data)
    if arrays:
        parts = tuple(keras.tree.map_structure(to_numpy, part) for part in data)
        lengths = [len(part) for part in keras.tree.flatten(parts)]
        if len(set(lengths)) != 1:
            raise ValueError(f"Expected as many labels as images. Received: {lengths}")
        count = lengths[0]
        batches = (
            keras.tree.map_structure(lambda part, start=start: part[start : start + batch_size], parts)
            for start in range(0, count, batch_size)
        )
    elif isinstance(data, keras.utils.PyDataset):
        batches = (data[i] for i in itertools.count() if data.num_batches is None or i < data.num_batches)
    elif hasattr(data, "__iter__") and not hasattr(data, "__next__"):
        batches = iter(data)
    else:
        raise ValueError(
            "Invalid value received for argument `data`. Expected arrays (images, labels), a tf.data.Dataset, a "
            f"PyDataset or another iterable of batches that can be read again. Received: {type(data).__name__}"
        )
    # Skip the last batch, because reading it advances a `keras_vit.data` dataset to the next epoch.
    steps = -(-count // batch_size) if arrays else num_batches(data)
    few = BATCHES if steps is None else min(BATCHES, max(1, steps - 1))
    found = [_parts(batch) for batch in itertools.islice(batches, int(few))]
    if not found or not len(keras.tree.flatten(found[0][0])[0]):
        raise ValueError("Invalid value received for argument `data`. Expected a batch of images. Received: none")
    # `keras_vit.data` sets these attributes.
    num_images = count if arrays else getattr(data, "num_images", None)
    all_labels = parts[1] if arrays else getattr(data, "file_labels", None)
    return Data(
        images=_joined([_image_input(batch[0]) for batch in found]),
        labels=_structure([batch[1] for batch in found if len(batch) > 1]),
        first=found[0],
        # The batch size of all processes together.
        batch_size=len(keras.tree.flatten(found[0][0])[0]) * getattr(data, "num_shards", 1),
        full=any(
            getattr(spec.shape, "rank", 0) and spec.shape[0]
            for spec in keras.tree.flatten(getattr(data, "element_spec", ()))[:1]
        ),
        num_images=num_images,
        steps=steps,
        class_names=list(getattr(data, "class_names", None) or []),
        num_classes=getattr(data, "num_classes", None),
        all_labels=to_numpy(all_labels) if isinstance(all_labels, list) else all_labels,
    )


def data_problems(model, graph, seen, heads):
    """Returns (problems, doubts) about a dataset's images and labels, two lists of messages."""
    problems, doubts = [], []
    if seen.images is not None:
        problems += _size_problems(graph, seen.images)
        try:
            strange = check_values(model, seen.images)
            doubts += [] if strange is None else [strange]
        except ValueError as error:
            problems.append(str(error))
    if len(seen.first) == 1 and heads[0].loss:
        problems.append("Expected images with labels to train on. Received: images alone")
    for name, labels, all_labels, num_classes, loss in heads:
        if not isinstance(labels, np.ndarray) or not num_classes:
            continue
        where = f"For the output {name!r}: " if name else ""
        wrong = list(task_problems(graph, loss, num_classes)) or list(label_problems(labels, num_classes, loss))
        if not wrong and all_labels is not None and all_labels.ndim == labels.ndim:
            wrong = list(label_problems(all_labels, num_classes, loss))
        problems += [where + text for text in wrong]
        doubts += [] if wrong else [where + text for text in label_doubts(labels, all_labels, num_classes, loss)]
        if not wrong and not name and seen.num_classes and seen.num_classes > num_classes > 1:
            problems.append(
                f"Expected a model of {seen.num_classes} outputs, one for each class of the data. "
                f"Received: {num_classes}"
            )
    carrier = find_normalization(model)
    named = getattr(carrier, "class_names", None)
    if names_differ(named, seen.class_names):
        problems.append(
            f"Expected the model's classes in their order, {named[:5]} ..., in the data as well. Received: "
            f"{seen.class_names[:5]} ... A new head has new names: set `class_names` of its layer {carrier.name!r}."
        )
    return problems, doubts


def names_differ(names, others):
    """Returns True if class names differ. An empty list matches all lists, a list of numbers all lists of words."""
    if names and others and set(names) & set(others):
        return list(names) != list(others)
    given = [names for names in (names, others) if names and names != [str(i) for i in range(len(names))]]
    return len(given) == 2 and given[0] != given[1]


def _size_problems(graph, images):
    """Yields a message if images do not have the model's input shape."""
    inputs = [] if graph is None else graph.inputs
    inputs = inputs if len(inputs) == 1 else [x for x in inputs if len(x.shape) == 4]
    if len(inputs) != 1:
        return
    expected, received = inputs[0].shape[1:], images.shape[1:]
    if not takes(expected, received):
        shape = " x ".join("any" if size is None else str(size) for size in expected)
        yield (
            f"Expected images of {shape}, height, width and channels, as the model takes them. "
            f"Received: {' x '.join(map(str, received))}"
        )


def step_problems(seen, steps, steps_per_epoch, replicas):
    """Yields messages about the number of steps, and about batches that the devices cannot share."""
    if steps == np.inf:
        yield "Expected `steps_per_epoch` for data that never ends. Received: None"
    if replicas == 1:
        return
    sizes = {seen.batch_size}
    rest = 0 if seen.full or not seen.num_images else seen.num_images % seen.batch_size
    if steps_per_epoch is None and rest and steps == seen.num_images // seen.batch_size + 1:
        sizes.add(rest)
    if uneven := sorted(size for size in sizes if size % replicas):
        yield (
            f"Expected batches that {replicas} devices can share. Received: a batch of {uneven[-1]} images. Choose "
            f"`batch_size` as a multiple of {replicas}, and leave out a last batch that is not full (drop_remainder) "
            "or fill it (pad_remainder)."
        )


def num_replicas():
    """Returns the number of devices that share a batch under a `keras.distribution`."""
    distribution = keras.distribution.distribution()
    if distribution is None or distribution.batch_dim_name is None:
        return 1
    mesh = distribution.device_mesh
    return mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]


def _parts(batch):
    """Converts a batch to a tuple (x,), (x, y) or (x, y, sample_weight) of NumPy arrays."""
    batch = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    return tuple(keras.tree.map_structure(to_numpy, part) for part in batch)


def _image_input(x):
    """Returns a single input, or the only input of rank 4 among several, or None."""
    if isinstance(x, np.ndarray):
        return x
    found = [part for part in keras.tree.flatten(x) if isinstance(part, np.ndarray) and part.ndim == 4]
    return found[0] if len(found) == 1 else None


def _structure(parts):
    """Concatenates batches of labels, array by array of their structure."""
    return keras.tree.map_structure(lambda *arrays: _joined(arrays), *parts) if parts else None


def _joined(parts):
    """Concatenates arrays of batches. Returns the first array if shapes differ, and None if a batch has no array."""
    if not parts or not all(isinstance(part, np.ndarray) for part in parts):
        return None
    if len({part.shape[1:] for part in parts}) != 1:
        return parts[0]
    return np.concatenate(parts)
