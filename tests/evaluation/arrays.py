"""Data of the tests: features of overlapping classes, and the forms that a model's data may have."""

import keras
import numpy as np
import pytest


def blobs(num_images, num_classes=4, num_features=12, seed=0, spread=1.5):
    """Returns (features, labels) around one centre per class. The centres do not depend on the seed."""
    centres = np.random.default_rng(99).normal(size=(num_classes, num_features))
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(num_images) % num_classes)
    return (centres[labels] + spread * rng.normal(size=(num_images, num_features))).astype("float32"), labels


def forms(data):
    """Yields an array, or a tuple of arrays, as arrays, tensors, datasets and a generator."""
    tf = pytest.importorskip("tensorflow", reason="it makes datasets for each backend")
    length = len(keras.tree.flatten(data)[0])

    def rows(start, stop):
        return keras.tree.map_structure(lambda x: x[start:stop], data)

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return -(-length // 3)

        def __getitem__(self, i):
            return rows(3 * i, 3 * i + 3)

    yield data
    yield keras.tree.map_structure(keras.ops.convert_to_tensor, data)
    yield Batches()
    yield tf.data.Dataset.from_tensor_slices(data).batch(4)
    # A generator has no length, and its first batch is empty.
    yield (rows(start, stop) for start, stop in ((0, 0), (0, 2), (2, length)))
