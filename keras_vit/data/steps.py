import numpy as np

from keras_vit.data.augment import RandAugment
from keras_vit.data.erase import RandomErasing
from keras_vit.data.keras_layers import seeded
from keras_vit.data.mix import Mix, mixer
from keras_vit.data.source import tf


class Steps:
    """The steps from a record to an image, and from decoded images to a batch; `root` is the seed, a tensor (2,).

    With `row_weight`, the weight of an image is its sample weight times `row_weight`, and 0 if its index is negative.
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
        # Each function is traced once, as one graph node: fewer nodes make an iteration start faster.
        self.decode, self.prepare = (
            tf.function(f, autograph=False, experimental_attributes={"_noinline": True})
            for f in (self._decode, self._prepare)
        )

    def _seed(self, index):
        """Returns the seed of an image from its index over all epochs."""
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
            # This form gives exactly -1 and 1, unlike x * a + b; a division would take twice as long.
            image = (image - offset) * (1 / divisor)
        if self._erase:
            image = self._erase(image, tf.random.fold_in(seed, 2))
        return index, image, beside

    def finish(self, index, images, beside, missing):
        """Returns a batch (index, missing, images or (images, labels) or (images, labels, weights))."""
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
    """Replaces the path of a record's image by its bytes if `files`; else the record already has the bytes."""
    return {**record, "image": tf.io.read_file(record["image"])} if files else record
