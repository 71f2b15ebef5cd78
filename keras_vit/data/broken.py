"""Skips images that cannot be decoded and lists them in a warning. Other images can take their places in a batch."""

import itertools
import os
import re

import numpy as np

from keras_vit.data.source import logger, tf


class BrokenImages(dict):
    """The images that a dataset skipped because they cannot be decoded: a dict from file name to error.

    `pipeline` creates this dict, and each batch that is read adds its broken images to it. At the end of an epoch, the
    logger `keras_vit.data` lists the broken images of this epoch in a warning. `repr` shows the last warning.
    """

    def __init__(self, load, num_images: int, repeats: int = 1):
        super().__init__()
        self._load, self._num_images, self._repeats = load, num_images, repeats
        self._waiting, self._summary = {}, "no broken images so far"

    def note(self, indices, names, images, done):
        """Records a batch's broken images. If an epoch has ended, lists the epoch's broken images in a warning.

        Images with an index below `done` are from epochs that have ended.
        """
        for index, name, image in zip(indices, map(os.fsdecode, names), images, strict=True):
            if name not in self:
                self[name] = _reason(self._load, {"name": name, "image": image}) or "decoding failed only once"
            # Repeated copies of an image count once.
            self._waiting[index // self._repeats] = name
        over = sorted(number for number in self._waiting if number * self._repeats < done)
        for _, numbers in itertools.groupby(over, lambda number: number // self._num_images):
            names = sorted(self._waiting.pop(number) for number in numbers)
            count = f"{len(names)} of {self._num_images} images were skipped in this epoch. They cannot be decoded:"
            more = [f"  ... and {len(names) - 20} more"] if len(names) > 20 else []
            text = "\n".join([count, *(f"  {name}: {self[name]}" for name in names[:20]), *more])
            # Logs and reports are UTF-8, but file names may not be.
            self._summary = text.encode(errors="backslashreplace").decode()
            logger.warning("%s", self._summary)
        return np.True_

    def __repr__(self) -> str:
        return f"<BrokenImages: {self._summary}>"


def first_readable(records, load):
    """Returns the first record that the function `load` can read. Raises a ValueError if there is none."""
    reasons = []
    for record in records:
        reason = _reason(load, record)
        if reason is None:
            return record
        reasons.append(f"{os.fsdecode(record['name'].numpy())}: {reason}")
    raise ValueError(f"Expected images that can be decoded. Received: {len(reasons)} broken images. {reasons[0]}")


def _reason(load, record):
    """Returns the message of the error that `load(record)` raises, or None if it raises no error."""
    try:
        load(record)
    except Exception as error:  # one bad file must not end the training
        text = getattr(error, "message", None) or str(error)
        # Remove the text that TensorFlow adds around a message.
        text = re.sub(r"\{\{.*?\}\}|\[Op:.*?\]|name: *$|^Expected '.*?' to be true. Summarized data: ", "", text)
        return " ".join(re.sub(r"b'(Expected[^']*|x)'", r"\1", text).split())[:200]
    return None


def replace_broken(
    data, decode, prepare, sound, batch_size, parallel, *, shard=(0, 1), full=False, weighted=False, whole=False
):
    """Makes batches of the (index, record) in `data`, and replaces or leaves out broken images.

    Each batch is (index of the first record, images, labels, (indices, names and "image" of the broken records)).
    `decode` may fail, and `prepare` must not. If all images of a batch are broken, the record `sound` replaces them.
    `shard` is (index of this process, number of processes). With `full`, copies of other images replace broken images.
    With `weighted`, the weight of a copy, in the last tensor of `labels`, is 0. `whole` drops a smaller last batch.
    """
    size = batch_size // shard[1]

    def alone(index, _):
        _, *rest = prepare(*decode(index, sound))
        return tf.constant(-1, "int64"), *rest

    def attempt(indices, records):
        elements = tf.data.Dataset.zip(indices, records)
        if size < batch_size:
            elements = elements.skip(shard[0] * size).take(size)
        count = elements.cardinality()
        decoded = elements.map(decode, parallel).ignore_errors().map(prepare, parallel).batch(count)
        found = decoded.concatenate(elements.take(1).map(alone).batch(1)).take(1)
        described = elements.map(lambda index, record: (index, record["name"], record["image"])).batch(count)
        return tf.data.Dataset.zip(described, found)

    def fill(records, found):
        (indices, *_), (present, images, labels) = records, found
        missing = tf.reduce_all(indices[:, None] != present[None], axis=1)

        def repeated():
            order = tf.range(tf.shape(indices)[0]) % tf.shape(images)[0]
            if weighted:
                # Replace a broken image by the readable image before it, or else by the first readable image.
                order = tf.maximum(tf.cumsum(tf.cast(~missing, "int32")) - 1, 0)
            return tf.nest.map_structure(lambda x: tf.gather(x, order), (images, labels))

        if full:
            images, labels = tf.cond(tf.reduce_any(missing), repeated, lambda: (images, labels))
        if weighted and labels:
            labels = (*labels[:-1], tf.where(missing, 0.0, labels[-1]))
        if whole:
            parts = (images, labels)
            images, labels = tf.nest.map_structure(lambda x: tf.ensure_shape(x, (size, *x.shape[1:])), parts)
        return indices[0], images, labels, tuple(tf.boolean_mask(part, missing) for part in records)

    # Prepare two batches at a time, so that the threads have work while the last images of one batch are decoded.
    windows = data.window(batch_size, drop_remainder=whole)
    return windows.interleave(attempt, cycle_length=2, num_parallel_calls=2, deterministic=True).map(fill)
