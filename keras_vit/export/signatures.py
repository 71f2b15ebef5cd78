"""The frozen signatures of a SavedModel: names, shapes, what is refused, and what is answered."""

import dataclasses

import tensorflow as tf

from keras_vit.export.image_bytes import OK, STATUSES, ImageReader


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a request may cost at most.

    Args:
        max_batch_size: Integer, images of a request.
        max_pixels: Integer, height x width of an encoded image.
        max_input_pixels: Integer, height x width of an image that a model of any size takes; the memory of attention
            grows with its square.
    """

    max_batch_size: int = 128
    max_pixels: int = 25_000_000
    max_input_pixels: int = 1024 * 1024


class Server(tf.Module):
    """A model and its signatures, as they are saved.

    Args:
        model: A `keras.Model` of the TensorFlow backend with one input, (batch, height, width, channels).
        names: Names of the model's outputs.
        normalization: An `ImageNormalization` whose constants scale images of 0..255 for the model.
        bytes_size: (height, width) that encoded images are resized to.
        limits: `Limits`.
        postprocess: Function from the model's one output to a dict of further outputs, or None.
    """

    def __init__(self, model, names, normalization, bytes_size, limits, postprocess=None):
        super().__init__()
        self._model, self._normalization, self._limits = _Untracked(model), _Untracked(normalization), limits
        self._names = tuple(names)
        self._shape = tuple(model.inputs[0].shape)[1:]
        # Nothing else of the model is tracked: its layers' own lists of variables would store each a second time.
        self.weights = [variable.value for variable in model.variables]
        self.postprocess = postprocess
        *_, channels = self._shape
        if channels in (1, 3):
            self._reader = ImageReader(bytes_size, channels, normalization.preprocessing, limits.max_pixels)
        else:
            # Neither JPEG nor PNG has so many.
            self._reader = None
        # Untracked as well, or the graph of the model would be stored a second time, as a function to call by itself.
        spec = tf.TensorSpec((None, *self._shape), "float32")
        self._answer = _Untracked(tf.function(self._compute, input_signature=[spec], autograph=False))

    def signatures(self):
        """The functions to save, by name."""
        specs = {
            "serving_default": (self._serve_images, tf.TensorSpec((None, *self._shape), "float32", "images")),
            "serving_uint8": (self._serve_uint8, tf.TensorSpec((None, *self._shape), "uint8", "images")),
        }
        if self._reader is not None:
            specs["serving_bytes"] = (self._serve_bytes, tf.TensorSpec((None,), "string", "image_bytes"))
        return {
            name: tf.function(function, input_signature=[spec], autograph=False).get_concrete_function()
            for name, (function, spec) in specs.items()
        }

    def _serve_images(self, images):
        return self._answer.value(self._checked(images))

    def _serve_uint8(self, images):
        return self._answer.value(self._scaled(tf.cast(self._checked(images), "float32")))

    def _serve_bytes(self, image_bytes):
        image_bytes = self._of_batch_size(tf.ensure_shape(image_bytes, (None,)))
        images, status = self._reader(image_bytes)
        outputs = self._answer.value(self._scaled(images))
        good = status == OK
        for name, output in outputs.items():
            # Zeros rather than NaN, which JSON does not have; -1 is no class.
            nothing = tf.fill(tf.shape(output), -1) if name == "classes" else tf.zeros_like(output)
            outputs[name] = tf.where(tf.reshape(good, [-1] + [1] * (output.shape.rank - 1)), output, nothing)
        return {**outputs, "status": tf.gather(tf.constant(STATUSES), status)}

    def _checked(self, images):
        """The same images, of a rank and shape that no kernel crashes on."""
        # A server does not compare what comes with the signature, and some kernels end the process on a wrong rank.
        images = self._of_batch_size(tf.ensure_shape(images, (None, *self._shape)))
        if None in self._shape[:2]:
            size = tf.cast(tf.shape(images)[1:3], "int64")
            pixels = tf.reduce_prod(size)
            allowed = tf.reduce_all(size > 0) & (pixels <= self._limits.max_input_pixels)
            message = f"Expected images of 1 to {self._limits.max_input_pixels} pixels. Received (height, width):"
            images = _asserting(allowed, [message, size], images)
        return images

    def _of_batch_size(self, rows):
        count, most = tf.shape(rows)[0], self._limits.max_batch_size
        message = f"Expected 1 to {most} images in a request. Received:"
        return _asserting((count > 0) & (count <= most), [message, count], rows)

    def _scaled(self, images):
        """Images of 0..255 as the model takes them."""
        layer = self._normalization.value
        return images if layer.apply else layer.normalize(images)

    def _compute(self, images):
        """All outputs of the model by name, once for all signatures."""
        images = tf.debugging.check_numerics(images, "Expected finite numbers as images.")
        model = self._model.value
        outputs = model(tf.cast(images, model.inputs[0].dtype), training=False)
        named = {}
        for name, output in zip(self._names, tf.nest.flatten(outputs), strict=True):
            if output.dtype.is_floating:
                # Servers and clients have no bfloat16 in JSON.
                output = tf.cast(output, "float32")
                output = tf.debugging.check_numerics(output, "The model's answer overflowed: the images are too large.")
            named[name] = output
        if self.postprocess is not None:
            named |= self.postprocess(*named.values())
        return named


class _Untracked:
    """Holds what must not become part of a tf.Module."""

    def __init__(self, value):
        self.value = value


def _asserting(condition, data, value):
    with tf.control_dependencies([tf.raw_ops.Assert(condition=condition, data=data)]):
        return tf.identity(value)
