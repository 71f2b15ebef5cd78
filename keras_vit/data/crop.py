import dataclasses

from keras_vit import arguments
from keras_vit.config import Preprocessing
from keras_vit.data.source import tf
from keras_vit.images.evaluation_transform import EvaluationTransform
from keras_vit.images.files import (
    JPEG,
    MAX_SCANS,
    PNG,
    decode_jpeg,
    decode_png,
    jpeg_header,
    png_header,
    read_pixels,
    starts_with,
    to_channels,
    upright_in_tensorflow,
)

CROPS = ("pretrain", "finetune", "pad", "eval")
# {image size: size to which images are resized before the random crop}, as in the ViT paper's fine-tuning. For other
# image sizes, the ratio is 8/7.
RESIZE = {384: 448, 480: 512}


@dataclasses.dataclass(frozen=True)
class Crop:
    """Decodes an image and crops it to a fixed size.

    The format is detected from the first bytes. TensorFlow decodes JPEG and PNG. Pillow decodes all other formats (only
    the first frame of a GIF), and also JPEG if `channels` is 4. Images are turned upright by their EXIF orientation.
    Transparent pixels are composited on white unless `channels` is 4. Before an image is decoded, the size in its
    header is checked. If the image is a JPEG, its number of scans is checked too.

    Args:
        image_size: (height, width) of the result, in pixels.
        kind: "pretrain": crop a random part whose share of the area is in `scale` and whose aspect ratio is 3/4 to 4/3,
            then resize. "finetune": resize to `resize_size`, then crop at random. "pad": resize to `image_size`, pad
            all sides with black by 1/8 of the size, then crop at random, as usual for 32-pixel images. "eval": resize
            and crop as in evaluation; see `Preprocessing`.
        flip: Bool, mirror each image with probability 0.5.
        channels: Integer. Images are converted to 1 (grayscale), 3 (RGB) or 4 (RGBA) channels.
        scale: (smallest, largest) share of the area for "pretrain", in (0, 1]; None: (0.05, 1.0).
        resize_size: (height, width) for "finetune"; None: 448 for an image size of 384, 512 for 480, and 8/7 of the
            image size for all other sizes.
        preprocessing: A `keras_vit.Preprocessing`. Random crops use only its `interpolation` and `antialias`.
        max_pixels: Integer, the largest height x width of an image. If the image is a JPEG, height x width x number
            of scans may be up to 16 times this number.

    Call arguments:
        encoded: Scalar string tensor, the bytes of a file. The result is a float32 tensor (height, width, channels) of
            0..255.
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
    scale: tuple[float, float] | None = None
    resize_size: tuple[int, int] | None = None
    preprocessing: Preprocessing = dataclasses.field(default_factory=Preprocessing)
    max_pixels: int = 50_000_000

    def __post_init__(self):
        arguments.choice("kind", self.kind, CROPS)
        object.__setattr__(self, "image_size", arguments.pair("image_size", self.image_size))
        resize_size = arguments.optional(arguments.pair, "resize_size", self.resize_size)
        object.__setattr__(self, "resize_size", resize_size)
        arguments.boolean("flip", self.flip)
        arguments.choice("channels", arguments.positive_int("channels", self.channels), (1, 3, 4))
        arguments.positive_int("max_pixels", self.max_pixels)
        arguments.instance("preprocessing", self.preprocessing, Preprocessing)
        scale = (1, 1) if self.scale is None else self.scale
        is_pair = isinstance(scale, (tuple, list)) and len(scale) == 2 and all(map(arguments.is_number, scale))
        if not is_pair or not 0 < scale[0] <= scale[1] <= 1:
            raise arguments.invalid("scale", "(smallest, largest) in (0, 1]", scale)
        if self.resize_size and any(r < s for r, s in zip(self.resize_size, self.image_size, strict=True)):
            raise arguments.invalid("resize_size", f"at least {self.image_size}", self.resize_size)
        for name, kind in (("scale", "pretrain"), ("resize_size", "finetune")):
            if getattr(self, name) is not None and self.kind != kind:
                expected = f'None with the crop {self.kind!r}, or the crop "{kind}"'
                raise arguments.invalid(name, expected, getattr(self, name))

    def __call__(self, encoded: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        return self.resize(self.decode(encoded, seed), seed)

    def decode(self, encoded: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        """Decodes an image to uint8. Fails for broken images.

        If `kind` is "pretrain", the result is the random crop before resizing.
        """
        encoded, seed = tf.convert_to_tensor(encoded), tf.cast(seed, "int64")

        def decoded(decode):
            if self.channels != 1:
                return decode(self.channels)
            # TensorFlow cannot decode CMYK to grayscale.
            in_cmyk = tf.io.extract_jpeg_shape(encoded)[2] == 4
            return tf.cond(in_cmyk, lambda: to_channels(decode(3), 1), lambda: decode(1))

        def png():
            with tf.control_dependencies([self._checked_size(png_header, encoded)]):
                return self._cut(decode_png(encoded, self.channels), seed)

        def jpeg():
            size = self._checked_size(jpeg_header, encoded)
            with tf.control_dependencies([size]):
                if self.kind == "eval":
                    # Use the decoder of exported models. Its pixels are nearly the same as Pillow's.
                    return decode_jpeg(encoded, self.channels)
                window = self._window(size, seed)
                # A JPEG without an end marker may be truncated. Decode all of it, because decoding only a crop may
                # succeed although other parts of the image are missing.
                return tf.cond(
                    tf.strings.substr(encoded, -2, 2) == b"\xff\xd9",
                    lambda: decoded(lambda channels: tf.image.decode_and_crop_jpeg(encoded, window, channels)),
                    lambda: self._cut(decoded(lambda channels: tf.io.decode_jpeg(encoded, channels)), seed),
                )

        def other():
            def read(data):
                # In a graph, numpy_function passes bytes to the function. In eager mode, it passes an array of bytes.
                return read_pixels(data if isinstance(data, bytes) else data.item(), self.channels, self.max_pixels)

            pixels = tf.numpy_function(read, [encoded], "uint8")
            return self._cut(tf.ensure_shape(pixels, (None, None, self.channels)), seed)

        def in_tensorflow():
            # Read the orientation once for both formats, because an iterator starts faster if its graph has few nodes.
            return upright_in_tensorflow(tf.cond(is_jpeg, jpeg, png), encoded)

        is_jpeg = starts_with(encoded, JPEG) & (self.channels != 4)
        return tf.cond(is_jpeg | starts_with(encoded, PNG), in_tensorflow, other)

    def resize(self, image: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        """Flips, resizes and crops the result of `decode`. Pass the same seed as to `decode`."""
        seed = tf.cast(seed, "int64")
        image = tf.ensure_shape(image, (None, None, self.channels))
        if self.flip:
            # Flip before resizing, because uint8 takes a quarter of the memory of float32.
            mirrored = tf.random.stateless_uniform((), seed + 1) < 0.5
            image = tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)
        if self.kind == "eval":
            return EvaluationTransform(tuple(self.image_size), self.preprocessing).in_tensorflow(image)
        size, interpolation = self.image_size, self.preprocessing.interpolation
        if self.kind == "finetune":
            size = self.resize_size or tuple(RESIZE.get(side, side * 8 // 7) for side in size)
        image = tf.cast(tf.image.resize(image, size, interpolation, antialias=self.preprocessing.antialias), "float32")
        if interpolation in ("bicubic", "lanczos3", "lanczos5"):
            # After resizing with these filters, pixels can be outside 0..255.
            image = tf.clip_by_value(image, 0.0, 255.0)
        if self.kind == "pad":
            image = tf.pad(image, [[side // 8, side // 8] for side in self.image_size] + [[0, 0]])
        if self.kind in ("finetune", "pad"):
            image = tf.image.stateless_random_crop(image, (*self.image_size, self.channels), seed)
        return image

    def _checked_size(self, header, encoded):
        """Returns an image's (height, width), which the function `header` reads. Fails if the image is too large."""
        size, fits = header(encoded, self.max_pixels)
        limits = f"max_pixels={self.max_pixels} pixels. In a JPEG, pixels x scans may be {MAX_SCANS} times as many"
        message = f"Expected an image of at most {limits}. Received"
        with tf.control_dependencies([tf.raw_ops.Assert(condition=fits, data=[message, size])]):
            return tf.cast(tf.identity(size), "int32")

    def _window(self, size, seed):
        """Returns the part of an image to decode, (y, x, height, width): a random crop for "pretrain", else all."""
        if self.kind != "pretrain":
            return tf.concat([[0, 0], size], 0)
        start, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.concat([size, [self.channels]], 0),
            tf.zeros((0, 0, 4)),
            seed,
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=self.scale or (0.05, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([start[:2], extent[:2]], 0)

    def _cut(self, image, seed):
        y, x, height, width = tf.unstack(self._window(tf.shape(image)[:2], seed), num=4)
        return image[y : y + height, x : x + width]
