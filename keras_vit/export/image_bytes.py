"""TensorFlow ops that decode JPEG and PNG files within the limits of `keras_vit.images.files`."""

import dataclasses

import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.images.evaluation_transform import EvaluationTransform
from keras_vit.images.files import JPEG, PNG, decode_jpeg, decode_png, jpeg_header, png_header

# Clients read these strings: do not change them.
STATUSES = ("ok", "unknown_format", "too_large", "damaged")
OK, UNKNOWN_FORMAT, TOO_LARGE, DAMAGED = range(4)
MAX_SIDE = 16_384
# Number of images decoded in parallel; each needs up to about 12 bytes per pixel.
PARALLEL = 4


@dataclasses.dataclass(frozen=True)
class ImageReader:
    """Decodes files, (batch,), to float32 images, (batch, *image_size, channels), in [0, 255]; bad files are black.

    The results are the images, indices in `STATUSES`, (batch,), and `EvaluationTransform.seen`, (batch, 2, 2), float32.
    """

    image_size: tuple[int, int]
    channels: int = 3
    preprocessing: Preprocessing = dataclasses.field(default_factory=Preprocessing)
    max_pixels: int = 25_000_000

    def __call__(self, image_bytes):
        image_bytes = tf.convert_to_tensor(image_bytes, "string")
        count, shape = tf.shape(image_bytes, "int64")[0], (*self.image_size, self.channels)
        rows = tf.data.Dataset.from_tensor_slices((tf.range(count), image_bytes))
        # In a graph, only tf.data can catch errors; it drops damaged files.
        rows = rows.map(self._row, num_parallel_calls=PARALLEL, deterministic=True).ignore_errors()
        # get_single_element needs a batch even if all files are damaged, so add a row.
        last = (count[None], tf.zeros((1, *shape)), tf.fill([1], DAMAGED), tf.zeros((1, 2, 2)))
        rows = rows.concatenate(tf.data.Dataset.from_tensor_slices(last)).batch(count + 1)
        index, images, status, seen = rows.get_single_element()
        images = tf.scatter_nd(index[:, None], images, tf.stack([count + 1, *shape]))
        seen = tf.scatter_nd(index[:, None], seen, tf.stack([count + 1, 2, 2]))
        status = tf.tensor_scatter_nd_update(tf.fill([count + 1], DAMAGED), index[:, None], status)
        return tf.ensure_shape(images[:-1], (None, *shape)), status[:-1], tf.ensure_shape(seen[:-1], (None, 2, 2))

    def _row(self, index, data):
        """Decodes and resizes one file; raises if it is damaged."""
        shape = (*self.image_size, self.channels)
        transform = EvaluationTransform(self.image_size, self.preprocessing)

        def black(status):
            return lambda: (tf.zeros(shape), tf.constant(status), tf.zeros((2, 2)))

        def checked(header, decode):
            _, fits = header(data, self.max_pixels, MAX_SIDE)

            def read():
                image = decode(data, self.channels)
                seen = transform.seen(tf.shape(image, "int64")[:2], tf)
                return transform.in_tensorflow(image), tf.constant(OK), tf.cast(seen, "float32")

            return tf.cond(fits, read, black(TOO_LARGE))

        def jpeg():
            return checked(jpeg_header, decode_jpeg)

        def other():
            return tf.cond(_starts(data, PNG), lambda: checked(png_header, decode_png), black(UNKNOWN_FORMAT))

        image, status, seen = tf.cond(_starts(data, JPEG), jpeg, other)
        return index, tf.ensure_shape(image, shape), status, seen


def _starts(data, magic):
    # substr returns a string that is too short unchanged.
    return tf.strings.substr(data, 0, len(magic)) == magic
