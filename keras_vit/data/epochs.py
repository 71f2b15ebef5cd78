import functools
import math
from types import SimpleNamespace

import numpy as np

from keras_vit import arguments
from keras_vit.data.source import tf

LAST = np.iinfo("int64").max


class Epochs:
    """Orders the records of each epoch, and counts the epochs. `root` is the seed, an integer tensor (2,)."""

    def __init__(
        self, records, num_images, root, *, shuffle_buffer, repeats, batch_size, skip_batches, repeat, drop_remainder
    ):
        self._records, self._num_images, self._root = records, num_images, root
        self._shuffle_buffer, self._repeats = shuffle_buffer, repeats
        self._batch_size, self._repeat = batch_size, repeat
        self.num_distinct = max(1, num_images // repeats)
        self.size = self.num_distinct * repeats
        if repeat:
            self.num_batches = math.inf
            self.first, self.start = divmod(skip_batches * batch_size, self.size)
        else:
            self.num_batches = self.size // batch_size if drop_remainder else math.ceil(self.size / batch_size)
            if not self.num_batches:
                raise ValueError(f"Expected `batch_size` <= {self.size} with `drop_remainder`. Received: {batch_size}")
            self.first, batch = divmod(skip_batches, self.num_batches)
            self.start = batch * batch_size
        # TensorFlow never frees the Python functions below, so they refer to this small object instead of `self`.
        self._next = SimpleNamespace(number=0 if repeat else self.first)

    def set(self, number: int) -> None:
        """Sets the number of the next iteration, an integer from 0."""
        self._next.number = arguments.non_negative_int("number", number)

    def parts(self, num_batches):
        """Returns a dataset of (epoch, begin, end), the ranges of images that one iteration of `num_batches` reads."""
        upcoming = self._next

        def number(_):
            return tf.ensure_shape(tf.numpy_function(lambda: np.int64(upcoming.number), [], "int64"), ())

        number = tf.data.Dataset.range(1).map(number)
        if self._repeat:
            rows = 0 if num_batches == math.inf else num_batches * self._batch_size

            def endless(n):
                first = n * rows + self.first * self.size + self.start
                epochs = tf.data.Dataset.range(first // self.size, LAST)
                return epochs.map(lambda epoch: (epoch, tf.maximum(first - epoch * self.size, 0), np.int64(self.size)))

            return number.flat_map(endless)
        # If the data starts within an epoch (`skip_batches`), an iteration ends at the same position of the next epoch.
        parts = [(0, self.start, self.size), (1, 0, self.start)] if self.start else [(0, 0, self.size)]
        parts = tf.data.Dataset.from_tensor_slices(np.array(parts, "int64"))
        return number.flat_map(lambda n: parts.map(lambda part: (n + part[0], part[1], part[2])))

    def row_weight(self, num_batches):
        """Returns the weight of an image. With the weight 0 of padding rows, the mean weight of all rows is 1."""
        rows = num_batches * self._batch_size
        padding = -self.size % self._batch_size if self.start + rows >= self.size else 0
        return rows / (rows - padding)

    def stream(self, epoch, begin, end, filler=None):
        """Returns a dataset of (index through all epochs, record) for the images `begin` to `end` of an epoch.

        Copies of the record `filler`, with the index -1 - (index of the last image), fill the last batch.
        """
        data = self._records
        if self._repeats > 1 and (self._shuffle_buffer or 1) < self._num_images:
            # Select other records in each epoch, because `take` below always starts at the beginning.
            data = data.shard(self._repeats, epoch % self._repeats)
        if self._shuffle_buffer is not None:
            # Remove the user's global TensorFlow seed, which would change the order.
            tf.compat.v1.get_default_graph().seed = None
            seed = tf.random.stateless_uniform((), tf.random.fold_in(self._root, epoch), None, None, "int64")
            data = data.shuffle(self._shuffle_buffer, seed, reshuffle_each_iteration=False)
        # Call `take` only if necessary. It stops before the end of the records, and TensorFlow keeps a cache only if an
        # iteration reaches this end.
        if self.num_distinct != self._num_images:
            data = data.take(self.num_distinct)
        if self._repeats > 1:
            data = data.flat_map(lambda record: tf.data.Dataset.from_tensors(record).repeat(self._repeats))
        indices = tf.data.Dataset.range(epoch * self.size + begin, epoch * self.size + end)
        data = tf.data.Dataset.zip(indices, data.skip(begin))
        if filler is not None:
            filling = tf.data.Dataset.from_tensors((-(epoch * self.size + end), filler))
            data = data.concatenate(filling.repeat((begin - end) % self._batch_size))
        return data

    def with_epoch_end(self, data, broken, num_batches):
        """Returns the batches in `data`, a dataset of (index, broken records, batch), and counts epochs during reading.

        An iteration has `num_batches` batches. `broken`, a `BrokenImages`, reports the broken records of each epoch.
        """
        upcoming = self._next

        def end(number):
            # Count an epoch once, even with concurrent iterations, and not after `set` has changed the number.
            if number == upcoming.number:
                upcoming.number += 1
            return np.True_

        def watch(state, batch):
            count, met = state
            index, missing, batch = batch
            count, met = count + 1, met | (tf.size(missing[0]) > 0)
            # All images with an index below `done` are from epochs that have ended.
            done = (index + self._batch_size) // self.size * self.size if self._repeat else tf.zeros((), "int64")
            done = done if num_batches == math.inf else tf.where(count == num_batches, LAST, done)
            note = functools.partial(tf.numpy_function, broken.note, [*missing, done], "bool")
            # Call Python only if this iteration has met broken images, because the call is slow.
            calls = [tf.cond(met, note, lambda: False)]
            if not self._repeat:
                # The last images of an iteration may be from the next epoch, so count the epoch of its first images.
                index = tf.maximum(index, -1 - index)
                epoch = index // self.size - tf.cast(index % self.size < self.start, "int64")
                ended = functools.partial(tf.numpy_function, end, [epoch], "bool")
                calls.append(tf.cond(count == num_batches, ended, lambda: False))
            with tf.control_dependencies(calls):
                return (count, met), tf.nest.map_structure(tf.identity, batch)

        return data.scan((tf.zeros((), "int64"), tf.constant(False)), watch)
