import keras
import numpy as np
import pytest

from keras_vit.models.batches import is_arrays, num_batches, sliced, to_numpy

IMAGES, LABELS = np.zeros((5, 2, 2, 3)), np.arange(5)


class Endless(keras.utils.PyDataset):
    num_batches = None

    def __getitem__(self, i):
        return IMAGES, LABELS


def test_arrays_are_sliced():
    assert is_arrays((IMAGES, LABELS)) and not is_arrays((IMAGES, LABELS, LABELS)) and not is_arrays(IMAGES)
    assert [labels.tolist() for _, labels in sliced((IMAGES, LABELS), 2)] == [[0, 1], [2, 3], [4]]
    np.testing.assert_array_equal(to_numpy(keras.ops.convert_to_tensor(LABELS)), LABELS)


def test_how_many_batches_there_are():
    assert num_batches([1, 2]) == 2 and num_batches(iter([])) is None and num_batches(Endless()) == np.inf


def test_how_many_batches_tf_data_has():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.range(6)
    assert [num_batches(d) for d in (data, data.repeat(), data.filter(lambda x: x > 2))] == [6, np.inf, None]
