"""Defines the signatures of an exported SavedModel."""

import dataclasses

import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.images.evaluation_transform import EvaluationTransform
from keras_vit.images.files import JPEG, PNG, decode_image, jpeg_header, png_header, starts_with
from keras_vit.layers import ImageNormalization
from keras_vit.prediction.taps import AttentionTaps

# Clients read these strings: do not change them.
STATUSES = ("ok", "unknown_format", "too_large", "damaged")
OK, UNKNOWN_FORMAT, TOO_LARGE, DAMAGED = range(4)
MAX_SIDE = 16_384
# Number of images decoded in parallel; each needs up to about 12 bytes per pixel.
PARALLEL = 4


@dataclasses.dataclass(frozen=True)
class ImageReader:
    """Decodes a batch of files, strings (batch,), and resizes the images.

    A call returns three tensors: the images, float32 in [0, 255]; the status of each file, an index in `STATUSES`; and
    the corners of each crop, as in `EvaluationTransform.seen`. If a file cannot be decoded, its image is black.
    """

    image_size: tuple[int, int]
    channels: int = 3
    preprocessing: Preprocessing = dataclasses.field(default_factory=Preprocessing)
    max_pixels: int = 25_000_000

    def __call__(self, image_bytes):
        image_bytes = tf.convert_to_tensor(image_bytes, "string")
        count, shape = tf.shape(image_bytes, "int64")[0], (*self.image_size, self.channels)
        rows = tf.data.Dataset.from_tensor_slices((tf.range(count), image_bytes))
        # In a TensorFlow graph, only tf.data can catch errors. `ignore_errors` drops the rows of damaged files.
        rows = rows.map(self._row, num_parallel_calls=PARALLEL, deterministic=True).ignore_errors()
        # get_single_element fails if there is no row. Add a row, because all files may be damaged.
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

        def read():
            image = decode_image(data, self.channels)
            seen = transform.seen(tf.shape(image, "int64")[:2], tf)
            return transform.in_tensorflow(image), tf.constant(OK), tf.cast(seen, "float32")

        def checked():
            limits = self.max_pixels, MAX_SIDE
            _, fits = tf.cond(is_jpeg, lambda: jpeg_header(data, *limits), lambda: png_header(data, *limits))
            return tf.cond(fits, read, black(TOO_LARGE))

        is_jpeg = starts_with(data, JPEG)
        image, status, seen = tf.cond(is_jpeg | starts_with(data, PNG), checked, black(UNKNOWN_FORMAT))
        return index, tf.ensure_shape(image, shape), status, seen


class Server:
    """Creates the signatures of a model. Arguments that are not described here are as in `saved_model`.

    `names` are the names of the outputs. `postprocess` is None or a dict with "activation", "labels" and "top".
    """

    def __init__(
        self, model, names, normalization, image_size, postprocess, max_batch_size, max_pixels, max_input_pixels
    ):
        self._model, self._names, self._postprocess = model, names, postprocess
        self._normalization = ImageNormalization(**normalization)
        self._max_batch_size, self._max_input_pixels = max_batch_size, max_input_pixels
        self._shape = tuple(model.inputs[0].shape)[1:]
        constants = self._normalization.preprocessing
        self._reader = ImageReader(tuple(image_size), self._shape[-1], constants, max_pixels)
        spec = tf.TensorSpec((None, *self._shape), "float32")
        # Trace the model once for all signatures.
        self._outputs = tf.function(self._compute, input_signature=[spec], autograph=False)

    def signatures(self, attention=False):
        """Returns {name: concrete function}; `attention` adds the signature with attention rollout."""
        images = [tf.TensorSpec((None, *self._shape), kind, "images") for kind in ("float32", "uint8")]
        files = tf.TensorSpec((None,), "string", "image_bytes")
        specs = {"serving_default": (self._serve_images, images[0]), "serving_uint8": (self._serve_uint8, images[1])}
        specs |= {"serving_bytes": (self._serve_bytes, files)} if self._shape[-1] in (1, 3) else {}
        specs |= {"serving_attention": (self._serve_attention, files)} if attention else {}
        return {
            name: tf.function(function, input_signature=[spec], autograph=False).get_concrete_function()
            for name, (function, spec) in specs.items()
        }

    def _serve_images(self, images):
        return self._outputs(self._checked(images))

    def _serve_uint8(self, images):
        return self._outputs(self._scaled(tf.cast(self._checked(images), "float32")))

    def _serve_bytes(self, image_bytes):
        images, status, _ = self._read(image_bytes)
        return self._readable_rows(self._outputs(self._scaled(images)), status)

    def _serve_attention(self, image_bytes):
        images, status, seen = self._read(image_bytes)
        taps = AttentionTaps(self._model)
        outputs, rollout = taps.rollout(self._cast(self._scaled(images)))
        # Compute the fractions of the height and the width that the patches cover. The fractions are below 1 if the
        # image size is not a multiple of the patch size.
        parts = [n * patch / side for side, n, patch in zip(*taps.layout[:3], strict=True)]
        corners = tf.stack([seen[:, 0], seen[:, 0] + (seen[:, 1] - seen[:, 0]) * parts], axis=1)
        return self._readable_rows({**self._named(outputs), "attention": rollout, "attention_corners": corners}, status)

    def _read(self, image_bytes):
        return self._reader(self._check_batch_size(tf.ensure_shape(image_bytes, (None,))))

    def _readable_rows(self, outputs, status):
        """Returns the outputs and the status by name; in rows whose status is not "ok", outputs are 0, -1 or ""."""
        for name, output in outputs.items():
            # JSON has no NaN, so use zeros, and -1 for no class.
            is_class = name == "classes" and self._postprocess is not None
            nothing = tf.fill(tf.shape(output), -1) if is_class else tf.zeros_like(output)
            good = tf.reshape(status == OK, [-1] + [1] * (output.shape.rank - 1))
            outputs[name] = tf.where(good, output, nothing)
        return {**outputs, "status": tf.gather(tf.constant(STATUSES), status)}

    def _checked(self, images):
        """Returns the images; fails if their rank, shape or size is wrong."""
        # Servers do not compare requests with the signature, and some kernels crash on a wrong rank.
        images = self._check_batch_size(tf.ensure_shape(images, (None, *self._shape)))
        if None in self._shape[:2]:
            size = tf.cast(tf.shape(images)[1:3], "int64")
            allowed = tf.reduce_all(size > 0) & (tf.reduce_prod(size) <= self._max_input_pixels)
            message = f"Expected images of 1 to {self._max_input_pixels} pixels. Received (height, width):"
            images = _asserting(allowed, [message, size], images)
        return images

    def _check_batch_size(self, rows):
        count, most = tf.shape(rows)[0], self._max_batch_size
        message = f"Expected 1 to {most} images in a request. Received:"
        return _asserting((count > 0) & (count <= most), [message, count], rows)

    def _scaled(self, images):
        """Scales images in [0, 255] to the values that the model takes."""
        layer = self._normalization
        return images if layer.apply else layer.normalize(images)

    def _compute(self, images):
        """Runs the model on images; returns {name: output}."""
        images = tf.debugging.check_numerics(images, "Expected finite numbers as images.")
        return self._named(tf.nest.flatten(self._model(self._cast(images), training=False)))

    def _cast(self, images):
        return tf.cast(images, self._model.inputs[0].dtype)

    def _named(self, outputs):
        """Returns {name: output} for a list of outputs, and adds the outputs for `postprocess`."""
        named = {}
        for name, output in zip(self._names, outputs, strict=True):
            if output.dtype.is_floating:
                # JSON clients do not support bfloat16.
                output = tf.cast(output, "float32")
                output = tf.debugging.check_numerics(
                    output, "The model's output overflowed: the pixel values are too large."
                )
            named[name] = output
        if self._postprocess is not None:
            activation = {"softmax": tf.nn.softmax, "sigmoid": tf.sigmoid, None: tf.identity}
            (outputs,) = named.values()
            named["probabilities"] = activation[self._postprocess["activation"]](outputs)
            named["scores"], named["classes"] = tf.math.top_k(named["probabilities"], self._postprocess["top"])
            # Look up the labels in a constant, because OpenVINO cannot read a SavedModel with a lookup table.
            named["labels"] = tf.gather(tf.constant(self._postprocess["labels"]), named["classes"])
        return named


def _asserting(condition, data, value):
    with tf.control_dependencies([tf.raw_ops.Assert(condition=condition, data=data)]):
        return tf.identity(value)
