"""Makes the batches of each epoch from any data that `fit` takes."""

import math

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.prediction.inputs import num_batches, to_numpy


class Epochs:
    """Makes the batches of an epoch from the `data` of `fit`. Their order depends only on the seed and the epoch."""

    def __init__(self, data, seed=0, batch_size=32, shuffle=True, steps=None):
        self.data, self.seed, self.batch_size, self.shuffle, self.steps = data, seed, batch_size, shuffle, steps
        self.is_function = callable(data)
        # `latest` is the data of the latest epoch. `_ends` counts the calls of `on_epoch_end` of a PyDataset.
        self.latest, self._ends = None, 0
        is_read = self.is_function or hasattr(data, "__iter__") or isinstance(data, keras.utils.PyDataset)
        check_parts(data)
        if isinstance(data, str) or not is_read:
            raise arguments.invalid("data", "arrays, a dataset, or a function of the epoch", data)
        if hasattr(data, "__next__"):
            problem = f"Expected `data` that can be read again in each epoch. Received: {type(data).__name__}"
            raise ValueError(f"{problem}. Pass a function of the epoch that returns new data.")
        found = None if self.is_function or is_arrays(data) else num_batches(data)
        is_dataset = not self.is_function and not is_arrays(data)
        if found == math.inf or (is_dataset and steps not in (None, found)):
            what = "data that never ends" if found == math.inf else f"data of {found or 'an unknown number of'} batches"
            raise ValueError(
                f"Expected epochs that read all batches of the data. Received: steps_per_epoch={steps}, {what}. Leave "
                "`steps_per_epoch` out, or pass a function of the epoch as `data` that returns new data."
            )

    def set_seeds(self, epoch):
        """Sets the global random seeds (Python, NumPy, backend) for the start of an epoch."""
        keras.utils.set_random_seed(int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0] >> 1))

    def batches(self, epoch, first=0, before=lambda: None):
        """Returns (data from batch `first`, number of batches). A `_Part` calls `before` before each batch."""
        self.set_seeds(epoch)
        previous, self.latest = self.latest, self.data(epoch) if self.is_function else self.data
        data = self.latest
        if self.is_function and data is not previous:
            self._ends = epoch
        if hasattr(data, "set_epoch"):
            data.set_epoch(epoch)
        order, workers = None, {}
        if is_arrays(data):
            data = Rows(data, self.batch_size)
            if self.shuffle:
                data.order = np.random.default_rng([self.seed, epoch]).permutation(data.count)
            total = self._total(len(data), first)
            return _Part(data, None, first, total, before), total
        total = self._total(num_batches(data), first)
        if isinstance(data, keras.utils.PyDataset):
            # A PyDataset may shuffle itself in `on_epoch_end`, so call this method once before each epoch. In a resumed
            # run, repeat the calls of the earlier epochs, unless a function has returned a new PyDataset.
            while self._ends <= epoch:
                self.set_seeds(self._ends)
                data.on_epoch_end()
                self._ends += 1
            self.set_seeds(epoch)
            data.on_epoch_begin()
            if self.shuffle and total is not None:
                order = np.random.default_rng([self.seed, epoch]).permutation(total).tolist()
            workers = {name: getattr(data, name) for name in ("workers", "use_multiprocessing", "max_queue_size")}
            if workers["workers"] <= 1 and not workers["use_multiprocessing"]:
                # Read the skipped batches too. The next batches then have the same random numbers as without a restart.
                for i in range(first):
                    data[i if order is None else order[i]]
        elif hasattr(data, "element_spec"):
            return data.skip(first) if first else data, total
        else:
            batches = iter(data)
            for _ in range(first):
                next(batches, None)
            if total is None:
                return (as_tuple(batch) for batch in batches), None
            data = _Drawn(batches, first)
        return _Part(data, order, first, total, before, **workers), total

    def first_batch(self):
        """Returns (first batch, number of batches) of the first epoch. The batch is a tuple, such as (x, y)."""
        batch, seen, steps = self._read_one()
        if seen is (self.data(0) if self.is_function else self.data) and not hasattr(seen, "set_epoch"):
            again, *_ = self._read_one()
            pairs = zip(keras.tree.flatten(batch), keras.tree.flatten(again), strict=True)
            if not all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs):
                raise ValueError(
                    "Expected `data` whose order and augmentation are the same in each process. Received: a "
                    f"{type(seen).__name__} whose first batch changes each time it is read. Pass a function of "
                    "the epoch that returns new data, such as lambda epoch: images.shuffle(1000).batch(32)."
                )
        return batch, steps

    def _read_one(self):
        x, steps = self.batches(0)
        batch = x[0] if isinstance(x, _Part) else next(iter(x))
        return keras.tree.map_structure(to_numpy, as_tuple(batch)), self.latest, steps

    def _total(self, found, first):
        total = found if self.steps is None else self.steps
        if total == math.inf:
            raise ValueError("Expected `steps_per_epoch` for data that never ends. Received: None")
        if total is not None and found is not None and total > found:
            raise ValueError(f"Expected at most {found} `steps_per_epoch`, the number of batches. Received: {total}")
        if total is not None and first and total <= first:
            raise ValueError(
                f"Expected an epoch of more than {first} batches, since the checkpoint is at batch {first}. "
                f"Received: {total} batches"
            )
        return total


def one_batch(batch):
    """Returns a dataset of one batch."""
    return _Part([batch], None, 0, 1)


def is_arrays(data):
    """Returns True if data is an array, or a nested tuple, list or dict of arrays, such as (x, y, sample_weight)."""
    if hasattr(data, "shape"):
        return True
    leaves = keras.tree.flatten(data) if isinstance(data, (tuple, list, dict)) else []
    return bool(leaves) and all(hasattr(leaf, "shape") for leaf in leaves if leaf is not None)


def check_parts(data):
    """Raises ValueError if data is a tuple or list in which a part is not an array, such as a list of labels."""
    if isinstance(data, (tuple, list)) and not is_arrays(data):
        received = ", ".join(type(part).__name__ for part in data[:5])
        raise ValueError(f"Expected `data` of arrays, such as (images, labels). Received: {received}. Use np.asarray.")


def as_tuple(batch):
    """Returns a batch as a tuple."""
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


class Rows:
    """A sequence of batches, cut from arrays (x, y, sample_weight)."""

    def __init__(self, arrays, batch_size):
        self.arrays = keras.tree.map_structure(_array, as_tuple(arrays))
        sizes = {len(array) for array in keras.tree.flatten(self.arrays) if array is not None}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"Expected `data` of arrays of equal length, at least 1. Received: {sorted(sizes)} rows")
        self.count, self.batch_size, self.order = sizes.pop(), batch_size, None

    def __len__(self):
        return -(-self.count // self.batch_size)

    def __getitem__(self, i):
        rows = slice(i * self.batch_size, (i + 1) * self.batch_size)
        rows = rows if self.order is None else self.order[rows]
        return keras.tree.map_structure(lambda array: None if array is None else array[rows], self.arrays)


def _array(array):
    """Converts an array to NumPy. Like `model.fit`, casts floats to `keras.config.floatx()`."""
    array = None if array is None else to_numpy(array)
    is_float = array is not None and array.dtype.kind == "f"
    return array.astype(keras.config.floatx(), copy=False) if is_float else array


class _Drawn:
    """Gives the batches of an iterator by their numbers. Keeps the first two, because TensorFlow reads them twice."""

    def __init__(self, batches, first):
        self.batches, self.next, self.kept = batches, first, {}
        self.first = first

    def __getitem__(self, i):
        while i >= self.next:
            batch = as_tuple(next(self.batches))
            if keras.backend.backend() != "torch":
                batch = keras.tree.map_structure(to_numpy, batch)
            self.kept = {key: value for key, value in self.kept.items() if key < self.first + 2}
            self.kept[self.next] = batch
            self.next += 1
        return self.kept[i]


class _Part(keras.utils.PyDataset):
    """The batches of an epoch in the given order, starting at number `first`. Calls `before` before each batch."""

    def __init__(self, data, order, first, total, before=lambda: None, **workers):
        super().__init__(**workers)
        self.data, self.order, self.first, self.total, self.before = data, order, first, total, before

    def __len__(self):
        return self.total - self.first

    def __getitem__(self, i):
        self.before()
        i += self.first
        return self.data[i if self.order is None else self.order[i]]
