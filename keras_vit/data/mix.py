import keras

from keras_vit.data.augment import Policy
from keras_vit.data.keras_layers import seeded, unchecked
from keras_vit.data.source import tf


class Mix:
    """Applies label smoothing, then MixUp or CutMix, to a batch.

    Args:
        policy: A `Policy`. If it has both MixUp and CutMix, one of them is drawn per batch.

    Call arguments: images: Float32 tensor (batch, height, width, channels). labels: Float32 tensor (batch, num_classes)
    of labels that sum to 1, also in the result. seed: Integer tensor (2,).

    Example:

    >>> import keras_vit.data, tensorflow as tf
    >>> mix = keras_vit.data.Mix(keras_vit.data.POLICIES["deit"])
    >>> data = tf.data.Dataset.from_tensors((tf.zeros((2, 8, 8, 3)), tf.eye(2)))
    >>> images, labels = next(iter(data.map(lambda x, y: mix(x, y, (0, 1)))))
    >>> tf.reduce_sum(labels, axis=1).numpy().round(3).tolist()
    [1.0, 1.0]

    Reference: arXiv 1710.09412; arXiv 1905.04899; arXiv 2012.12877, section 6. Keras' layers draw one mixing weight per
    image, the official code one per batch. CutMix' labels follow the box before its corners are rounded to pixels.
    """

    def __init__(self, policy: Policy):
        self.smoothing = policy.label_smoothing
        self.layers = []
        # Compute in float32 under any dtype policy, because a lower precision would round the pixels.
        options = {"data_format": "channels_last", "dtype": "float32"}
        if policy.mixup:
            self.layers.append(unchecked(keras.layers.MixUp(alpha=policy.mixup, **options)))
        if policy.cutmix:
            self.layers.append(unchecked(keras.layers.CutMix(factor=(policy.cutmix, policy.cutmix), **options)))

    def __call__(self, images: "tf.Tensor", labels: "tf.Tensor", seed: "tf.Tensor") -> "tuple[tf.Tensor, tf.Tensor]":
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
    """Returns a layer of Keras or keras-cv as a function of (images, labels, seed) for images of shape `image`."""
    mix = seeded(layer, {"images": tf.TensorSpec((None, *image)), "labels": tf.TensorSpec((None, num_classes))})

    def call(images, labels, seed):
        outputs = mix({"images": images, "labels": labels}, seed)
        return outputs["images"], outputs["labels"]

    return call
