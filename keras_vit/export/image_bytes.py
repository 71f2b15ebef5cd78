"""Graph operations from the bytes of JPEG and PNG files to the images that a model takes.

Headers are checked before anything is decoded: a PNG of 62 KB can otherwise ask for a gigabyte.
"""

import dataclasses

import tensorflow as tf

from keras_vit.evaluation_transform import EvaluationTransform, decode_jpeg, decode_png
from keras_vit.preprocessing import Preprocessing

# The values of a row's status; part of the frozen signature.
STATUSES = ("ok", "unknown_format", "too_large", "damaged")
OK, UNKNOWN_FORMAT, TOO_LARGE, DAMAGED = range(4)
JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
# Resizing holds the output's height times the input's width in memory, so pixels alone are no limit.
MAX_SIDE = 16_384
# Images of a request that are decoded at the same time; each may take some 12 bytes a pixel.
PARALLEL = 4


@dataclasses.dataclass(frozen=True)
class ImageReader:
    """Decodes and resizes a batch of files, as `keras_vit.models.classify.read_image` does one.

    It takes a string tensor, (batch,), and returns float32 images of 0..255, (batch, height, width, channels), black
    for bad files, and each row's index in `STATUSES`, int32, (batch,). Files of more than `max_pixels` by their header
    are not decoded.
    """

    image_size: tuple[int, int]
    channels: int = 3
    preprocessing: Preprocessing = dataclasses.field(default_factory=Preprocessing)
    max_pixels: int = 25_000_000

    def __call__(self, image_bytes):
        image_bytes = tf.convert_to_tensor(image_bytes, "string")
        count, shape = tf.shape(image_bytes, "int64")[0], (*self.image_size, self.channels)
        rows = tf.data.Dataset.from_tensor_slices((tf.range(count), image_bytes))
        # Only a dataset can catch errors in a graph: it drops the rows of damaged files.
        rows = rows.map(self._row, num_parallel_calls=PARALLEL, deterministic=True).ignore_errors()
        # One more row, since there would be no batch without any.
        last = (count[None], tf.zeros((1, *shape)), tf.fill([1], DAMAGED))
        rows = rows.concatenate(tf.data.Dataset.from_tensor_slices(last)).batch(count + 1)
        index, images, status = rows.get_single_element()
        images = tf.scatter_nd(index[:, None], images, tf.stack([count + 1, *shape]))
        status = tf.tensor_scatter_nd_update(tf.fill([count + 1], DAMAGED), index[:, None], status)
        return tf.ensure_shape(images[:-1], (None, *shape)), status[:-1]

    def _row(self, index, data):
        """Decodes and resizes one file; fails if it is damaged."""
        shape = (*self.image_size, self.channels)
        resize = EvaluationTransform(self.image_size, self.preprocessing).in_tensorflow

        def black(status):
            return lambda: (tf.zeros(shape), tf.constant(status))

        def checked(size, decode):
            size = tf.cast(size, "int64")
            fits = tf.reduce_all((size > 0) & (size <= MAX_SIDE)) & (tf.reduce_prod(size) <= self.max_pixels)
            return tf.cond(fits, lambda: (resize(decode(data, self.channels)), tf.constant(OK)), black(TOO_LARGE))

        def jpeg():
            return checked(tf.image.extract_jpeg_shape(data)[:2], decode_jpeg)

        def png():
            # Of an unsigned number above 2**31 this makes a negative one, which is not allowed either.
            sides = tf.io.decode_raw(tf.strings.substr(data, len(PNG), 8), "int32", little_endian=False)
            return checked(tf.ensure_shape(sides, (2,))[::-1], decode_png)

        def other():
            return tf.cond(_starts(data, PNG), png, black(UNKNOWN_FORMAT))

        image, status = tf.cond(_starts(data, JPEG), jpeg, other)
        return index, tf.ensure_shape(image, shape), status


def _starts(data, magic):
    # substr of a shorter string gives what there is.
    return tf.strings.substr(data, 0, len(magic)) == magic
