import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_vit import arguments

logger = logging.getLogger("keras_vit.data")


class _TensorFlow:
    """Imports TensorFlow on first use, because `import keras_vit` must work without TensorFlow."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_import_tensorflow(), name)


def _import_tensorflow():
    try:
        import tensorflow
    except ModuleNotFoundError as error:
        raise ImportError(
            "`keras_vit.data` uses tf.data, and so needs TensorFlow on every backend: pip install tensorflow"
        ) from error
    if keras.backend.backend() != "tensorflow":
        _hide_gpus()
    return tensorflow


@functools.cache
def _hide_gpus():
    """Hides the GPUs from TensorFlow, which would take memory of each GPU, although it only reads images."""
    # If TensorFlow has already used a GPU, it refuses this setting.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _TensorFlow()


@dataclasses.dataclass(frozen=True)
class Source:
    """The images and labels that a pipeline reads.

    Args:
        records: tf.data.Dataset of dicts {"name": string, "image": string, "label": ..., "weight": float}. "label" and
            "weight" (the sample weight) are optional. All iterations must give the records in the same order.
        num_images: Integer, the number of records.
        files: Bool, True if "image" is a path, False if it is an encoded image.
        labels: The kind of labels. "int": classes counted from 0; "soft": a probability per class; "multi_hot": 0 or 1
            per class; "float": regression targets; None: no labels.
        class_names: The class names in label order. If this is empty, the class numbers are the names.
        num_classes: Integer, the number of classes. If `labels` is "float", the number of regression targets.
    """

    records: "tf.data.Dataset"
    num_images: int
    files: bool
    labels: str | None
    class_names: tuple[str, ...]
    num_classes: int

    def __post_init__(self):
        if not hasattr(self.records, "element_spec"):
            raise arguments.invalid("records", "a tf.data.Dataset", self.records)
        arguments.positive_int("num_images", self.num_images)
        arguments.non_negative_int("num_classes", self.num_classes)
        arguments.boolean("files", self.files)
        arguments.choice("labels", self.labels, ("int", "soft", "multi_hot", "float", None))
        names = [str(name) for name in arguments.several("class_names", self.class_names)]
        if not names and self.labels in ("int", "soft", "multi_hot"):
            names = [str(i) for i in range(self.num_classes)]
        object.__setattr__(self, "class_names", tuple(names))

    def fingerprint(self):
        """Returns a hash of the records' names, labels and weights. If `files` is False, hashes only 100 records."""
        digest = hashlib.sha256(repr((self.num_images, self.labels, self.class_names)).encode())
        records = self.records if self.files else self.records.take(100)
        records = records.map(lambda record: {key: value for key, value in record.items() if key != "image"})
        for batch in records.batch(10_000).as_numpy_iterator():
            for values in batch.values():
                digest.update(repr(values.tolist()).encode())
        return digest.hexdigest()[:16]


def file_source(files, labels, kind, class_names, num_classes, weights=None):
    """Makes a `Source` of image files. `kind` is the kind of `labels`; `weights` are sample weights or None."""
    # Store paths as bytes, because the name of a file may not be valid UTF-8.
    paths = np.array([os.fsencode(file) for file in files], object)
    records = {"name": paths, "image": paths}
    if kind is not None:
        records["label"] = np.array(labels, "int32" if kind == "int" else "float32")
    if weights is not None:
        records["weight"] = np.array(weights, "float32")
    records = tf.data.Dataset.from_tensor_slices(records)
    return Source(records, len(files), True, kind, tuple(class_names), num_classes)
