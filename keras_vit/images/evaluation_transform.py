"""Resizes, crops and pads decoded images to the model's image size, as in evaluation.

The TensorFlow code gives equal results in pipelines and exported models. The NumPy code differs only by rounding.
"""

import dataclasses
import math
import operator

import numpy as np

from keras_vit.config import Preprocessing
from keras_vit.images.interpolation import cubic, triangle

# {interpolation: (TensorFlow's name of the filter, radius of its kernel, the kernel as a function for NumPy)}.
_KERNELS = {
    "bilinear": ("triangle", 1.0, triangle),
    "bicubic": ("keyscubic", 2.0, cubic(-0.5)),
    "lanczos3": ("lanczos3", 3.0, lambda x, xp: np.sinc(x) * np.sinc(x / 3) * (np.abs(x) < 3)),
    "lanczos5": ("lanczos5", 5.0, lambda x, xp: np.sinc(x) * np.sinc(x / 5) * (np.abs(x) < 5)),
    "area": ("box", 0.5, lambda x, xp: np.heaviside(0.5 - np.abs(x), 0.5)),
}


@dataclasses.dataclass(frozen=True)
class EvaluationTransform:
    """Resizes images and crops or pads them to `image_size`, (height, width), by the settings in `preprocessing`."""

    image_size: tuple[int, int]
    preprocessing: Preprocessing = dataclasses.field(default_factory=Preprocessing)

    @property
    def resized(self):
        """The (height, width) to resize to. In the modes "crop" and "pad", only one side gets this size."""
        # Add 1e-9, because 384 / (384 / 438) is slightly less than 438 in floating point.
        return tuple(math.floor(side / self.preprocessing.crop_fraction + 1e-9) for side in self.image_size)

    def plan(self, size, xp=np):
        """Returns the (height, width) to resize an image of `size` to, and the crop's (top, left), negative to pad."""
        height, width = size[0], size[1]
        rows, columns = map(np.int64, self.resized)
        mode, square = self.preprocessing.resize_mode, self.image_size[0] == self.image_size[1]
        if mode == "squash":
            new = (0 * height + rows, 0 * width + columns)
        else:
            # In the mode "crop", the side that is shorter relative to the target sets the scale. In the mode "pad", the
            # longer one does.
            short, long = height * columns, width * rows
            by_height = short <= long if mode == "crop" else short >= long
            # torchvision rounds the longer side down. timm uses torchvision for square crops, else rounds to nearest.
            divide = operator.floordiv if mode == "crop" and square else _rounded
            new = (
                xp.where(by_height, rows, xp.maximum(divide(height * columns, width), 1)),
                xp.where(by_height, xp.maximum(divide(width * rows, height), 1), columns),
            )
        new = xp.stack(new)
        margin = new - np.array(self.image_size, "int64")
        odd = margin // 2 % 2 if self.preprocessing.crop_rounding == "even" else 0
        # If the number of padded pixels is odd, the top or left side gets the smaller half.
        return new, xp.where(margin < 0, -(-margin // 2), (margin + odd) // 2)

    def seen(self, size, xp=np):
        """Returns the crop's two corners, (y, x), as fractions of the image's sides; outside of 0 to 1 with padding."""
        new, start = self.plan(size, xp)
        return xp.stack([start / new, (start + np.array(self.image_size, "int64")) / new])

    @property
    def fill(self):
        """The value of padded pixels: the mean in `preprocessing`, as one integer of 0..255 or one per channel."""
        offset, _ = self.preprocessing.offset_and_scale
        return np.clip(np.round(np.array(offset, "float32")), 0, 255)

    def in_numpy(self, image):
        """Transforms a uint8 array, (height, width, channels), to float32 (*image_size, channels)."""
        new, start = self.plan(np.array(image.shape[:2], "int64"))
        if self.preprocessing.interpolation == "nearest":
            for axis in (0, 1):
                places = np.arange(self.image_size[axis]) + start[axis]
                places = ((places + 0.5) * image.shape[axis] / new[axis]).astype("int64")
                image = np.take(image, np.clip(places, 0, image.shape[axis] - 1), axis=axis)
            return self._padded(image.astype("float32"), new, start, np)
        for axis in (1, 0):
            weights = self._weights(image.shape[axis], new[axis], start[axis], self.image_size[axis])
            image = _weighted(image, *weights, axis)
            # Pillow rounds to integers after it has resized each axis.
            if self.preprocessing.antialias:
                image = np.clip(np.round(image), 0, 255)
        return self._padded(np.clip(image, 0.0, 255.0), new, start, np)

    def in_tensorflow(self, image):
        """Transforms a uint8 tensor (height, width, channels) to float32 (*image_size, channels)."""
        import tensorflow as tf

        height, width = self.image_size
        interpolation, antialias = self.preprocessing.interpolation, self.preprocessing.antialias
        shape = tf.shape(image, "int64")[:2]
        whole = self.preprocessing.resize_mode == "squash" and self.preprocessing.crop_fraction == 1
        if whole and interpolation in ("bilinear", "bicubic") and not antialias:
            # The official code uses `tf.image.resize` in this case.
            return tf.clip_by_value(tf.image.resize(image, self.image_size, interpolation), 0.0, 255.0)
        new, start = self.plan(shape, tf)
        # Compute only the crop. The whole resized image may be huge: 1 x 16,384 pixels become 224 x 3.7 million pixels.
        scale = tf.cast(new, "float64") / tf.cast(shape, "float64")
        if interpolation == "nearest":
            for axis in (0, 1):
                places = tf.cast(tf.range(self.image_size[axis], dtype="int64") + start[axis], "float64") + 0.5
                places = tf.cast(places * tf.cast(shape[axis], "float64") / tf.cast(new[axis], "float64"), "int64")
                image = tf.gather(image, tf.clip_by_value(places, 0, shape[axis] - 1), axis=axis)
            return self._padded(tf.cast(image, "float32"), new, start, tf)
        scale, move = tf.cast(scale, "float32"), -tf.cast(start, "float32")

        def resized(image, size, scale, move):
            return tf.raw_ops.ScaleAndTranslate(
                images=image[None],
                size=size,
                scale=scale,
                translation=move,
                kernel_type=_KERNELS[interpolation][0],
                antialias=antialias,
            )[0]

        if antialias:
            for axis in (1, 0):
                along = tf.constant([axis == 0, axis == 1])
                size = tf.where(along, [height, width], tf.shape(image)[:2])
                image = resized(image, size, tf.where(along, scale, 1.0), tf.where(along, move, 0.0))
                image = tf.clip_by_value(tf.round(image), 0.0, 255.0)
        else:
            image = tf.clip_by_value(resized(image, [height, width], scale, move), 0.0, 255.0)
        return self._padded(tf.ensure_shape(image, (height, width, None)), new, start, tf)

    def _padded(self, image, new, start, xp):
        if self.preprocessing.resize_mode != "pad":
            return image
        inside = []
        for axis, side in enumerate(self.image_size):
            places = np.arange(side) + start[axis]
            inside.append((places >= 0) & (places < new[axis]))
        return xp.where(inside[0][:, None, None] & inside[1][None, :, None], image, self.fill)

    def _weights(self, old, new, start, size):
        """Returns two arrays with a row per new pixel: its first source pixel, and the weights of its source pixels."""
        _, reach, kernel = _KERNELS[self.preprocessing.interpolation]
        # Round as TensorFlow does, because for "area", rounding decides which pixels at the edge are averaged.
        step = 1 / np.float32(new / old)
        wide = max(step, np.float32(1)) if self.preprocessing.antialias else np.float32(1)
        centres = (np.arange(size, dtype="float32") + np.float32(0.5)) * step + np.float32(start) * step
        first = np.ceil(centres - reach * wide - 0.5).astype("int64")
        places = first[:, None] + np.arange(math.floor(2 * reach * wide) + 1)
        weights = kernel((places.astype("float32") + np.float32(0.5) - centres[:, None]) * (1 / wide), np)
        weights[(places < 0) | (places >= old)] = 0
        total = weights.sum(axis=1, keepdims=True)
        return first, (weights / np.where(total == 0, 1, total)).astype("float32")


def _rounded(size, by):
    """Returns `size / by`, rounded to the nearest integer. Halves round to even, as in Python's `round`."""
    return (2 * size + by - 1 + size // by % 2) // (2 * by)


def _weighted(image, first, weights, axis):
    """Returns weighted sums of pixels along `axis`. (`first`, `weights`) is the result of `_weights`."""
    # Move the axis to the front, so that all values of one row or column are contiguous in memory.
    image = np.ascontiguousarray(np.moveaxis(image, axis, 0))
    total = np.zeros((len(first), *image.shape[1:]), "float32")
    for i, shares in enumerate(weights.T):
        total += image[np.clip(first + i, 0, len(image) - 1)] * shares[:, None, None]
    return np.moveaxis(total, 0, axis)
