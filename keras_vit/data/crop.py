import dataclasses
import io

import numpy as np

from keras_vit import arguments
from keras_vit.data.source import tf
from keras_vit.evaluation_transform import EvaluationTransform, decode_jpeg, decode_png
from keras_vit.preprocessing import Preprocessing

JPEG, PNG = b"\xff\xd8\xff", b"\x89PN"
CROPS = ("pretrain", "finetune", "pad", "eval")
# The paper's resize sizes for "finetune"; other sizes use the usual ratio of 8/7, as 256 for 224.
RESIZE = {384: 448, 480: 512}


@dataclasses.dataclass(frozen=True)
class Crop:
    """Decodes an image and crops it to a fixed size.

    The format is detected from the first bytes, not the file name: JPEG, PNG, GIF (first frame) or BMP. The size in the
    header is checked before decoding.

    Args:
        image_size: (height, width) of the result, in pixels.
        kind: "pretrain": a random crop of `scale` of the area, with an aspect ratio of 3/4 to 4/3, then resize.
            "finetune": resize to `resize_size`, then a random crop. "pad": resize to `image_size`, pad all sides in
            black by 1/8 of the size, then a random crop, as usual for 32-pixel images. "eval": see `Preprocessing`.
        flip: Bool, mirror half of the images.
        channels: Integer. Pictures are converted to 1 (grayscale), 3 (RGB) or 4 (RGBA) channels; arrays must match.
        scale: (smallest, largest) share of the area for "pretrain", in (0, 1].
        resize_size: (height, width) for "finetune"; None: 448 for 384, 512 for 480, otherwise 8/7 of `image_size`.
        interpolation, crop_fraction: As in `keras_vit.Preprocessing`; `crop_fraction` is for "eval".
        antialias: Bool, filter before downscaling, as Pillow does and the official code does not.
        max_pixels: Integer, the largest height x width of an input image.
        arrays: Bool, accept `.npy` files (height, width, channels) too. Resized images are then not rounded to bytes.
        evaluation: The `keras_vit.Preprocessing` for "eval"; None builds it from the arguments above.

    Call arguments:
        encoded: Scalar string tensor, the bytes of a file. The result is a float32 tensor (height, width, channels),
            with values of 0..255 for pictures.
        seed: Integer tensor (2,) for the crop and the flip.

    Raises:
        tf.errors.OpError: If the image is broken or too large.

    Example:

    >>> import keras_vit.data, tensorflow as tf
    >>> png = tf.io.encode_png(np.zeros((40, 30, 1), "uint8"))
    >>> keras_vit.data.Crop((16, 16), "finetune")(png, seed=(0, 1)).shape
    (16, 16, 3)

    Reference: arXiv 2010.11929, appendix B.1; the random crop is Inception's (arXiv 1409.4842, section 6).
    """

    image_size: tuple[int, int]
    kind: str = "pretrain"
    flip: bool = False
    channels: int = 3
    scale: tuple[float, float] = (0.05, 1.0)
    resize_size: tuple[int, int] | None = None
    interpolation: str = "bilinear"
    antialias: bool = False
    crop_fraction: float = 1.0
    max_pixels: int = 50_000_000
    arrays: bool = False
    evaluation: Preprocessing | None = None

    def __post_init__(self):
        arguments.one_of("kind", self.kind, CROPS)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise arguments.invalid("scale", "(smallest, largest) in (0, 1]", self.scale)
        if self.resize_size and any(r < s for r, s in zip(self.resize_size, self.image_size, strict=True)):
            raise arguments.invalid("resize_size", f"at least {self.image_size}", self.resize_size)
        if self.evaluation is None:
            antialias = None if self.interpolation in ("nearest", "area") else self.antialias
            record = Preprocessing(
                interpolation=self.interpolation, antialias=antialias, crop_fraction=self.crop_fraction
            )
            object.__setattr__(self, "evaluation", record)

    def __call__(self, encoded: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        return self.resize(self.decode(encoded, seed), seed)

    def decode(self, encoded: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        """Decodes the image, for "pretrain" only the crop: uint8, or float32 with `arrays`; raises if broken."""
        encoded, seed = tf.convert_to_tensor(encoded), tf.cast(seed, "int64")
        if not self.arrays:
            return self._picture(encoded, seed)
        if self.channels not in (1, 3, 4):
            return self._array(encoded, seed)

        def picture():
            return tf.cast(self._picture(encoded, seed), "float32")

        is_array = tf.strings.substr(encoded, 0, 6) == b"\x93NUMPY"
        return tf.cond(is_array, lambda: self._array(encoded, seed), picture)

    def resize(self, image: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        """Flips, resizes and crops the result of `decode`, which must have had the same seed."""
        seed = tf.cast(seed, "int64")
        image = tf.ensure_shape(image, (None, None, self.channels))
        if self.flip:
            # Before resizing, as uint8 takes a quarter of float32's memory; `tf.image` would also check shapes.
            mirrored = tf.random.stateless_uniform((), seed + 1) < 0.5
            image = tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)
        if self.kind == "eval":
            return EvaluationTransform(tuple(self.image_size), self.evaluation).in_tensorflow(image)
        size = self.image_size
        if self.kind == "finetune":
            size = self.resize_size or tuple(RESIZE.get(side, side * 8 // 7) for side in size)
        image = tf.cast(tf.image.resize(image, size, self.interpolation, antialias=self.antialias), "float32")
        if self.interpolation in ("bicubic", "lanczos3", "lanczos5") and self.channels in (1, 3, 4):
            # These filters overshoot.
            image = tf.clip_by_value(image, 0.0, 255.0)
        if self.kind == "pad":
            image = tf.pad(image, [[side // 8, side // 8] for side in self.image_size] + [[0, 0]])
        if self.kind in ("finetune", "pad"):
            image = tf.image.stateless_random_crop(image, (*self.image_size, self.channels), seed)
        return image

    def _picture(self, encoded, seed):
        start = tf.strings.substr(encoded, 0, 3)

        def pixels():
            return tf.io.decode_image(encoded, self.channels, expand_animations=False)

        def whole():
            shape = self._allowed(self._header(encoded, start))
            return _cut(pixels(), self._window(shape, seed))

        def window():
            window = self._window(self._allowed(tf.image.extract_jpeg_shape(encoded)), seed)
            return tf.image.decode_and_crop_jpeg(encoded, window, self.channels)

        if self.channels == 4:
            return whole()
        if self.kind == "eval":
            # Slower, but gives the same pixels as exported graphs, and nearly Pillow's.
            decoders = [(JPEG, decode_jpeg), (PNG, decode_png)]
            cases = [(start == magic, lambda f=f: f(encoded, self.channels)) for magic, f in decoders]
            with tf.control_dependencies([self._allowed(self._header(encoded, start))]):
                return tf.case(cases, default=pixels)
        # A truncated JPEG (no end marker) always fails if decoded whole, but only for some crops otherwise.
        complete = tf.reduce_all(tf.strings.substr(encoded, [0, -2], [3, 2]) == [JPEG, b"\xff\xd9"])
        if not tf.executing_eagerly():
            # One node, since each node of the branch not taken costs time too.
            whole = tf.function(whole, autograph=False, experimental_attributes={"_noinline": True})
        return tf.cond(complete, window, whole)

    def _array(self, encoded, seed):
        def load(data):
            # numpy_function passes bytes in a graph, and an array of them in eager mode.
            file = io.BytesIO(data if isinstance(data, bytes) else data.item())
            try:
                array = np.load(file, allow_pickle=False)
            # Of a damaged header, NumPy raises errors of many types.
            except Exception as error:
                raise ValueError(f"Cannot read the array: {error}") from None
            if array.ndim != 3 or array.shape[-1] != self.channels or not array.size:
                raise ValueError(f"Expected an array (height, width, {self.channels}). Received: {array.shape}")
            return array.astype("float32")

        array = tf.ensure_shape(tf.numpy_function(load, [encoded], "float32"), (None, None, self.channels))
        return _cut(array, self._window(self._allowed(tf.shape(array)), seed))

    def _header(self, encoded, start):
        """Reads (height, width, channels) from a picture's header; the channels may be wrong."""

        def integers(position, count, dtype, little_endian=True):
            part = tf.strings.substr(encoded, position, count)
            width, height = tf.unstack(tf.cast(tf.io.decode_raw(part, dtype, little_endian), "int32")[:2], num=2)
            return tf.abs(tf.stack([height, width, self.channels]))

        def unknown():
            message = "Expected a JPEG, PNG, GIF or BMP. Received bytes starting with"
            with tf.control_dependencies([tf.raw_ops.Assert(condition=False, data=[message, start])]):
                return tf.zeros(3, "int32")

        size = tf.case(
            [
                (start == JPEG, lambda: tf.image.extract_jpeg_shape(encoded)),
                (start == PNG, lambda: integers(16, 8, tf.int32, little_endian=False)),
                (start == b"GIF", lambda: integers(6, 4, tf.uint16)),
                (tf.strings.substr(encoded, 0, 2) == b"BM", lambda: integers(18, 8, tf.int32)),
            ],
            default=unknown,
        )
        return tf.ensure_shape(size, (3,))

    def _allowed(self, shape):
        """Returns `shape`, (height, width, channels); fails if it has too many pixels."""
        pixels = tf.reduce_prod(tf.cast(shape[:2], "float32"))
        message = f"Expected an image of at most max_pixels={self.max_pixels} pixels. Received"
        allowed = tf.raw_ops.Assert(condition=pixels <= self.max_pixels, data=[message, shape])
        with tf.control_dependencies([allowed]):
            return tf.identity(shape)

    def _window(self, shape, seed):
        """Returns the window (y, x, height, width) to decode, for an image of shape (height, width, channels)."""
        if self.kind != "pretrain":
            return tf.concat([[0, 0], shape[:2]], 0)
        start, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.zeros((0, 0, 4)),
            seed,
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=self.scale,
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([start[:2], extent[:2]], 0)


def _cut(image, window):
    y, x, height, width = tf.unstack(window)
    return image[y : y + height, x : x + width]
