import math

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.data.augment import Policy, RandAugment
from keras_vit.data.keras_layers import seeded, unchecked
from keras_vit.data.source import tf

# timm's settings of random erasing: the range of the erased share of the image, the range of the aspect ratio (height /
# width) of the erased rectangle, and the number of attempts to find a rectangle that fits into the image.
_AREA, _ASPECT, _TRIES = (0.02, 1 / 3), (0.3, 1 / 0.3), 10


class RandomErasing:
    """Fills a random rectangle of some images with noise, as timm does for DeiT (arXiv 1708.04896)."""

    # Do not use keras.layers.RandomErasing. It draws noise for the whole image, which would take half of the pipeline's
    # time.
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
        # If no rectangle fits, nothing is erased.
        h, w = (tf.where(fits[first], lengths[first], 0) for lengths in sides)
        top, left = (
            tf.cast(place[first] * tf.cast(room + 1, "float32"), "int32")
            for place, room in zip(places, (height - h, width - w), strict=True)
        )
        noise = tf.random.stateless_normal((h, w, channels), tf.random.fold_in(seed, 1)) * self.std + self.mean
        around = [[top, height - h - top], [left, width - w - left], [0, 0]]
        erased = tf.where(tf.pad(tf.ones((h, w, 1), "bool"), around), tf.pad(noise, around), image)
        return tf.ensure_shape(erased, image.shape)


class Mix:
    """Applies label smoothing, then MixUp or CutMix, to a batch.

    Args:
        policy: A `Policy`. If it has both MixUp and CutMix, each batch gets one of the two with equal probability.

    Call arguments: images: Float32 tensor (batch, height, width, channels). labels: Float32 tensor (batch, num_classes)
    with rows that sum to 1. seed: Integer tensor (2,). The result is (images, labels), with rows of labels that sum to
    1 too.

    Example:
    >>> import keras_vit.data, tensorflow as tf
    >>> mix = keras_vit.data.Mix(keras_vit.data.POLICIES["deit"])
    >>> data = tf.data.Dataset.from_tensors((tf.zeros((2, 8, 8, 3)), tf.eye(2)))
    >>> images, labels = next(iter(data.map(lambda x, y: mix(x, y, (0, 1)))))
    >>> tf.reduce_sum(labels, axis=1).numpy().round(3).tolist()
    [1.0, 1.0]

    Reference: arXiv 1710.09412; arXiv 1905.04899; arXiv 2012.12877, section 6. `Mix` uses Keras' layers, which draw
    one mixing weight per image. The code of the papers draws one per batch. CutMix mixes the labels by the area that
    the box has before its corners are rounded to pixels.
    """

    def __init__(self, policy: Policy):
        self.smoothing = arguments.instance("policy", policy, Policy).label_smoothing
        self.layers = []
        # Compute in float32 under any dtype policy, because a lower precision would round the pixels.
        options = {"data_format": "channels_last", "dtype": "float32"}
        if policy.mixup:
            self.layers.append(unchecked(keras.layers.MixUp(alpha=policy.mixup, **options)))
        if policy.cutmix:
            self.layers.append(unchecked(keras.layers.CutMix(factor=(policy.cutmix, policy.cutmix), **options)))

    def __call__(self, images: "tf.Tensor", labels: "tf.Tensor", seed: "tf.Tensor") -> "tuple[tf.Tensor, tf.Tensor]":
        labels = tf.convert_to_tensor(labels)
        if not labels.dtype.is_floating or labels.shape.rank == 1:
            raise arguments.invalid("labels", "floats (batch, num_classes), as from tf.one_hot", labels)
        if self.smoothing:
            labels = labels * (1 - self.smoothing) + self.smoothing / labels.shape[-1]
        if not self.layers:
            return images, labels
        inputs, seed = {"images": images, "labels": labels}, tf.cast(seed, "int64")
        branches = [lambda layer=layer: layer(dict(inputs), seed) for layer in self.layers]
        chosen = tf.random.stateless_uniform((), seed, 0, len(branches), "int32")
        outputs = tf.switch_case(chosen, branches) if len(branches) > 1 else branches[0]()
        return tf.ensure_shape(outputs["images"], images.shape), tf.ensure_shape(outputs["labels"], labels.shape)


def mixer(layer, image, num_classes):
    """Returns a function of (images, labels, seed) that calls a layer such as MixUp. `image` is the image shape."""
    mix = seeded(layer, {"images": tf.TensorSpec((None, *image)), "labels": tf.TensorSpec((None, num_classes))})

    def call(images, labels, seed):
        outputs = mix({"images": images, "labels": labels}, seed)
        return outputs["images"], outputs["labels"]

    return call


class Steps:
    """The steps of a pipeline that turn a record into an image, and images into a batch.

    `root`, an integer tensor (2,), is the seed. If `row_weight` is not None, the weight of an image is its sample
    weight times `row_weight`. Padding rows have a negative index, and their weight is 0.
    """

    def __init__(self, cut, augmentation, source, labels, preprocessing, normalize, files, root, row_weight=None):
        self._cut, self._labels, self._num_classes, self._files = cut, labels, source.num_classes, files
        keys = source.records.element_spec
        self._beside = [] if labels is None else [key for key in ("label", "weight") if key in keys]
        self._row_weight = None if labels is None else row_weight
        offset, divisor = (np.array(c, "float32") for c in preprocessing.offset_and_scale)
        self._scale = (offset, divisor) if normalize else None
        self._root = tf.random.stateless_uniform((), root, None, None, "int64")
        policy = augmentation.policy
        self._augment = self._erase = None
        if policy.randaugment:
            self._augment = RandAugment(*policy.randaugment, policy.magnitude_std, policy.operations)
        if policy.erasing:
            mean_and_std = (0.0, 1.0) if normalize else (offset, divisor)
            self._erase = RandomErasing(policy.erasing, *mean_and_std)
        image = (*cut.image_size, cut.channels)
        self._layers = [seeded(layer, tf.TensorSpec((1, *image))) for layer in augmentation.layers]
        self._mixers = [Mix(policy)] if policy.mixes else []
        self._mixers += [mixer(layer, image, source.num_classes) for layer in augmentation.mixers]
        # Make each function a single graph node, because an iterator starts faster if its graph has few nodes.
        self.decode, self.prepare = (
            tf.function(f, autograph=False, experimental_attributes={"_noinline": True})
            for f in (self._decode, self._prepare)
        )

    def _seed(self, index):
        """Returns the seed of an image. `index` is the image's number, counted through all epochs."""
        return tf.stack([self._root, index])

    def _decode(self, index, record):
        encoded = read(record, self._files)["image"]
        beside = tuple(record[key] for key in self._beside)
        if self._row_weight is not None:
            weight = record.get("weight", 1.0) * self._row_weight
            beside = (record["label"], tf.where(index < 0, 0.0, weight))
        return index, self._cut.decode(encoded, self._seed(index)), beside

    def _prepare(self, index, image, beside):
        seed = self._seed(index)
        image = self._cut.resize(image, seed)
        if self._augment:
            image = self._augment(image, tf.random.fold_in(seed, 1))
        for i, layer in enumerate(self._layers):
            image = layer(image[None], tf.random.fold_in(seed, 4 + i))[0]
        if self._scale is not None:
            offset, divisor = self._scale
            # Unlike x * a + b, this maps 0 and 255 to exactly -1 and 1. A division would take twice as long.
            image = (image - offset) * (1 / divisor)
        if self._erase:
            image = self._erase(image, tf.random.fold_in(seed, 2))
        return index, image, beside

    def finish(self, index, images, beside, missing):
        """Returns (index, missing, batch). `beside` are labels and weights, and `missing` are the broken records."""
        if self._labels is None:
            return index, missing, images
        label, *weight = beside
        if self._labels == "int":
            label = tf.cast(label, "int32")
        elif self._labels == "one_hot":
            label = tf.one_hot(label, self._num_classes)
        else:
            label = tf.cast(label, "float32")
        seed = tf.random.fold_in(self._seed(index), 3)
        for i, mix in enumerate(self._mixers):
            images, label = mix(images, label, tf.random.fold_in(seed, i) if i else seed)
        return index, missing, (images, label, *weight)


def read(record, files):
    """Returns a record whose "image" is the bytes of the image. If `files` is True, the given "image" is a path."""
    return {**record, "image": tf.io.read_file(record["image"])} if files else record
