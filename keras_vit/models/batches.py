"""Images and labels in batches, from arrays and from whatever gives batches."""

import keras
import numpy as np
from keras import ops


def to_numpy(x):
    """An array of a tensor of the backend, of tf.data or of another kind, or of nested lists."""
    return np.asarray(ops.convert_to_numpy(x) if ops.is_tensor(x) else x)


def is_arrays(data, counts=(2,)):
    """Whether data is a tuple or list of as many arrays as one of `counts` says."""
    return isinstance(data, (tuple, list)) and len(data) in counts and all(hasattr(part, "shape") for part in data)


def sliced(parts, batch_size):
    """Yields the batches of arrays of one length, each a tuple."""
    for i in range(0, len(parts[0]), batch_size):
        yield tuple(part[i : i + batch_size] for part in parts)


def num_batches(data):
    """How many batches there are in what gives them; infinity where it never ends, None where that is not known.

    Args:
        data: A `tf.data.Dataset`, a `keras.utils.PyDataset`, a `torch.utils.data.DataLoader` or another iterable.
    """
    if isinstance(data, keras.utils.PyDataset):
        return np.inf if data.num_batches is None else data.num_batches
    if hasattr(data, "cardinality"):
        # tf.data says -1 of a dataset that repeats and -2 where it does not know.
        count = int(data.cardinality())
        return {-1: np.inf, -2: None}.get(count, count)
    try:
        return len(data)
    except TypeError:
        return None
