from keras_vit.data.augment import seeded


class Mix:
    """Mixes the images of a batch and their labels by MixUp or CutMix, with one-hot labels smoothed before.

    Args:
        policy: A `Policy`. Where it has both, one of the two is drawn for each batch.

    Call arguments:
        images: Float32 tensor (batch, height, width, channels).
        labels: Float32 tensor (batch, num_classes) of labels that sum to 1.
        seed: Integer tensor (2,); the same seed mixes in the same way.

    Returns:
        (images, labels) of the same shapes; each label still sums to 1.

    Example:

    >>> import keras_vit.data, tensorflow as tf
    >>> mix = keras_vit.data.Mix(keras_vit.data.POLICIES["deit"])
    >>> data = tf.data.Dataset.from_tensors((tf.zeros((2, 8, 8, 3)), tf.eye(2)))
    >>> images, labels = next(iter(data.map(lambda x, y: mix(x, y, (0, 1)))))
    >>> tf.reduce_sum(labels, axis=1).numpy().round(3).tolist()
    [1.0, 1.0]

    Reference: arXiv 1710.09412; arXiv 1905.04899; arXiv 2012.12877, section 6. Keras draws a weight for each image, the
    official codes one for the batch.
    """

    def __init__(self, policy):
        self.smoothing = policy.label_smoothing
        self.layers = []
        if policy.mixup:
            self.layers.append(seeded("MixUp", alpha=policy.mixup))
        if policy.cutmix:
            self.layers.append(seeded("CutMix", factor=(policy.cutmix, policy.cutmix)))

    def __call__(self, images, labels, seed):
        import tensorflow as tf

        if self.smoothing:
            labels = labels * (1 - self.smoothing) + self.smoothing / labels.shape[-1]
        if not self.layers:
            return images, labels
        inputs, seed = {"images": images, "labels": labels}, tf.cast(seed, "int64")
        branches = [lambda layer=layer: layer(dict(inputs), seed) for layer in self.layers]
        chosen = tf.random.stateless_uniform((), seed, 0, len(branches), "int32")
        outputs = tf.switch_case(chosen, branches) if len(branches) > 1 else branches[0]()
        return tf.ensure_shape(outputs["images"], images.shape), tf.ensure_shape(outputs["labels"], labels.shape)
