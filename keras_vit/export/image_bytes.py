"""Graph operations from the bytes of JPEG and PNG files to the images that a model takes.

Nothing that a file says is believed before it is checked: a PNG of 62 KB can otherwise ask for a gigabyte.
"""

import dataclasses

import tensorflow as tf

from keras_vit.evaluation_transform import EvaluationTransform, decode_jpeg, decode_png
from keras_vit.preprocessing import Preprocessing

# What a row's status says; part of the frozen signature.
STATUSES = ("ok", "unknown_format", "too_large", "damaged")
OK, UNKNOWN_FORMAT, TOO_LARGE, DAMAGED = range(4)
JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
# Resizing holds the output's height times the input's width in memory, so pixels alone are no limit.
MAX_SIDE = 16_384
# How many images of a request are decoded at a time; each may take some 12 bytes a pixel.
PARALLEL = 4


@dataclasses.dataclass(frozen=True)
class ImageReader:
    """Decodes and resizes a batch of files, as `keras_vit.models.classify.read_image` does one.

    Args:
        image_size: (height, width) of the result, in pixels.
        channels: 1 (grey) or 3 (RGB), whatever the files hold.
        preprocessing: The `Preprocessing` of the images.
        max_pixels: Integer, height x width that a file may say in its header.

    Call arguments:
        image_bytes: String tensor, (batch,).

    Returns:
        Float32 images of 0..255, (batch, height, width, channels), black where there is none, and the place of each
        row's status in `STATUSES`, int32, (batch,).

    Example:

    >>> from keras_vit.export.image_bytes import ImageReader
    >>> images, status = ImageReader((8, 8))([b"no image"])
    >>> images.shape, status.numpy().tolist()
    ((1, 8, 8, 3), [1])
    """

    image_size: tuple[int, int]
    channels: int = 3
    preprocessing: Preprocessing = dataclasses.field(default_factory=Preprocessing)
    max_pixels: int = 25_000_000

    def __call__(self, image_bytes):
        image_bytes = tf.convert_to_tensor(image_bytes, "string")
        count = tf.shape(image_bytes, "int64")[0]
        rows = tf.data.Dataset.from_tensor_slices((tf.range(count), image_bytes))
        # A graph cannot catch errors but in a dataset: the row of a damaged file does not arrive.
        rows = rows.map(self._row, num_parallel_calls=PARALLEL, deterministic=True).ignore_errors()
        # Where no row arrives there would be no batch.
        nothing = (count[None], tf.zeros((1, *self._shape)), tf.fill([1], DAMAGED))
        rows = rows.concatenate(tf.data.Dataset.from_tensor_slices(nothing)).batch(count + 1)
        index, images, status = rows.get_single_element()
        images = tf.scatter_nd(index[:, None], images, tf.stack([count + 1, *self._shape]))
        status = tf.tensor_scatter_nd_update(tf.fill([count + 1], DAMAGED), index[:, None], status)
        return tf.ensure_shape(images[:-1], (None, *self._shape)), status[:-1]

    @property
    def _shape(self):
        return (*self.image_size, self.channels)

    def _row(self, index, data):
        image, status = self.read(data)
        return index, image, status

    def read(self, data):
        """Decodes and resizes one file.

        Args:
            data: Scalar string tensor.

        Returns:
            The image and the place of its status, as the call; fails where the file is damaged.
        """

        resize = EvaluationTransform(self.image_size, self.preprocessing).in_tensorflow

        def nothing(status):
            return lambda: (tf.zeros(self._shape), tf.constant(status))

        def of(size, decode):
            """Decodes if the size that the header says is allowed."""
            size = tf.cast(size, "int64")
            pixels = tf.reduce_prod(size)
            fits = tf.reduce_all((size > 0) & (size <= MAX_SIDE)) & (pixels <= self.max_pixels)
            return tf.cond(fits, lambda: (resize(decode(data, self.channels)), tf.constant(OK)), nothing(TOO_LARGE))

        def jpeg():
            return of(tf.image.extract_jpeg_shape(data)[:2], decode_jpeg)

        def png():
            width, height = (_big_endian(tf.strings.substr(data, i, 4)) for i in (len(PNG), len(PNG) + 4))
            return of(tf.stack([height, width]), decode_png)

        image, status = tf.cond(
            _starts(data, JPEG),
            jpeg,
            lambda: tf.cond(_starts(data, PNG), png, nothing(UNKNOWN_FORMAT)),
        )
        return tf.ensure_shape(image, self._shape), status


def _starts(data, magic):
    # Of a string that is shorter, substr gives what there is.
    return tf.strings.substr(data, 0, len(magic)) == magic


def _big_endian(data):
    """The unsigned number of four bytes."""
    values = tf.cast(tf.io.decode_raw(data, "uint8")[:4], "int64")
    return tf.tensordot(tf.ensure_shape(values, (4,)), tf.constant([1 << 24, 1 << 16, 1 << 8, 1], "int64"), 1)
