import math

from keras_vit.data.source import tf

# Ranges of a rectangle's share of the area and of height / width, and how often timm tries to draw one that fits.
_AREA, _ASPECT, _TRIES = (0.02, 1 / 3), (0.3, 1 / 0.3), 10


class RandomErasing:
    """Fills a random rectangle of some images with noise, as timm does for DeiT.

    Args:
        probability: Float in [0, 1], the share of images.
        mean, std: Floats, or one per channel, of the normal noise; use the mean and standard deviation of images.

    Call arguments:
        image: Float32 tensor (height, width, channels), of static shape.
        seed: Integer tensor (2,).

    Reference: arXiv 1708.04896; `random_erasing.py` of timm, with mode="pixel".
    """

    # Keras' layer of this name draws noise for the whole image, which takes half of the pipeline's time.
    def __init__(self, probability, mean=0.0, std=1.0):
        self.probability, self.mean, self.std = probability, mean, std

    def __call__(self, image: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        seed = tf.cast(seed, "int64")
        chosen = tf.random.stateless_uniform((), seed) < self.probability
        return tf.cond(chosen, lambda: self._erased(image, tf.random.fold_in(seed, 1)), lambda: image)

    def _erased(self, image, seed):
        height, width, channels = image.shape
        shares, aspects, *places = tf.unstack(tf.random.stateless_uniform((4, _TRIES), seed))
        areas = height * width * (_AREA[0] + (_AREA[1] - _AREA[0]) * shares)
        low, high = map(math.log, _ASPECT)
        aspects = tf.exp(low + (high - low) * aspects)
        sides = [tf.cast(tf.round(tf.sqrt(area)), "int32") for area in (areas * aspects, areas / aspects)]
        fits = (sides[0] < height) & (sides[1] < width)
        first = tf.argmax(fits)
        # If none fits, nothing is erased.
        h, w = (tf.where(fits[first], lengths[first], 0) for lengths in sides)
        top, left = (
            tf.cast(place[first] * tf.cast(room + 1, "float32"), "int32")
            for place, room in zip(places, (height - h, width - w), strict=True)
        )
        noise = tf.random.stateless_normal((h, w, channels), tf.random.fold_in(seed, 1)) * self.std + self.mean
        around = [[top, height - h - top], [left, width - w - left], [0, 0]]
        erased = tf.where(tf.pad(tf.ones((h, w, 1), "bool"), around), tf.pad(noise, around), image)
        return tf.ensure_shape(erased, image.shape)
