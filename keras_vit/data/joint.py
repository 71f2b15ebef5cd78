"""Joins labelled images and images without labels for semi-supervised training."""

import dataclasses
from typing import Any

import numpy as np

from keras_vit import arguments
from keras_vit.data.source import Source, tf


def relabelled(source: Source, labels: Any) -> Source:
    """Returns a `Source` of the images in `labels`, with their pseudo labels.

    If `labels` contains an image several times, the copies of this image follow each other.

    Args:
        source: The `Source` of the images: `data.source`, if the pseudo labels were made from the dataset `data`.
        labels: A `keras_vit.semi_supervised.PseudoLabels`. If these labels are soft, pipelines of the result have
            float32 labels (batch, num_classes).

    Raises:
        ValueError: If the number of images in `source` differs from the number of images that the teacher predicted.

    Example:
    >>> import keras, keras_vit.data, tempfile
    >>> path = tempfile.mkdtemp() + "/cat.png"
    >>> keras.utils.save_img(path, np.zeros((20, 20, 3)))
    >>> data = keras_vit.data.from_dataframe({"path": [path] * 3}, label_column=None, image_size=16)
    >>> teacher = keras_vit.ViT("Ti/16", image_size=16, num_layers=1, num_classes=2)
    >>> labels = keras_vit.semi_supervised.pseudo_labels(teacher, data, per_class=2, verbose=0)
    >>> chosen = keras_vit.data.pipeline(relabelled(data.source, labels), image_size=16, augment="light1")
    >>> next(iter(chosen))[1].shape
    (2, 2)
    """
    arguments.instance("source", source, Source)
    if not hasattr(labels, "settings"):
        raise arguments.invalid("labels", "a keras_vit.semi_supervised.PseudoLabels", labels)
    if source.num_images != labels.settings["num_images"]:
        expected = f"the {labels.settings['num_images']} images that the teacher predicted"
        raise arguments.invalid("source", expected, source.num_images)
    counts = np.bincount(labels.indices, minlength=source.num_images)
    first = np.cumsum(counts) - counts

    def build():
        table = [tf.constant(array) for array in (labels.labels, counts, first)]

        def rows(index, record):
            values, counts, first = table
            record = {"name": record["name"], "image": record["image"], "label": values[first[index]]}
            return tf.data.Dataset.from_tensors(record).repeat(counts[index])

        # Skip the images that were not chosen, which have no label.
        return source.records.enumerate().filter(lambda index, _: table[1][index] > 0).flat_map(rows)

    records = tf.autograph.experimental.do_not_convert(build)()
    kind, names = "int" if labels.labels.ndim == 1 else "soft", labels.class_names
    changes = {"num_images": len(labels.indices), "class_names": names, "num_classes": len(names)}
    return dataclasses.replace(source, records=records, labels=kind, **changes)


def with_pseudo_labels(
    labelled: "tf.data.Dataset",
    pseudo_labelled: "tf.data.Dataset",
    *,
    num_classes: int,
    ratio: float = 1.0,
    label_smoothing: float = 0.1,
) -> "tf.data.Dataset":
    """Joins each batch of labelled images with a batch of pseudo-labelled images, for Noisy Student's loss.

    The result has batches of (images, labels, weights). Labels are float32 (batch, num_classes), and weights are
    float32 (batch,). With `keras.losses.CategoricalCrossentropy(from_logits=True)`, plain `model.fit` minimizes `mean
    cross-entropy of the labelled images + ratio * mean cross-entropy of the pseudo-labelled images`. An epoch ends when
    the shorter dataset ends, so let the labelled dataset repeat.

    Args:
        labelled: Batches of (images, labels). The labels are integers, or one number per class.
        pseudo_labelled: Batches of (images, labels). The images have the size of the labelled images, and the labels
            are from a teacher.
        num_classes: Integer of at least 2.
        ratio: Float above 0, the weight of the pseudo-labelled images' mean loss.
        label_smoothing: Float in [0, 1), the share of each label that is spread over all classes; soft labels of the
            teacher are not smoothed.

    Raises:
        ValueError: If an argument is out of range, a batch is not (images, labels), or the class names of the two
            datasets differ.

    Example:
    >>> import tensorflow as tf
    >>> images = np.zeros((4, 8, 8, 3), "float32")
    >>> labelled = tf.data.Dataset.from_tensor_slices((images, [0, 1, 0, 1])).batch(2)
    >>> soft = tf.data.Dataset.from_tensor_slices((images, np.full((4, 2), 0.5, "float32"))).batch(4)
    >>> data = keras_vit.data.with_pseudo_labels(labelled, soft, num_classes=2)
    >>> images, labels, weights = next(iter(data))
    >>> images.shape, weights.numpy().tolist()
    ((6, 8, 8, 3), [3.0, 3.0, 1.5, 1.5, 1.5, 1.5])

    Reference: [arXiv 1911.04252](https://arxiv.org/abs/1911.04252), section 2.
    """
    arguments.positive_int("num_classes", num_classes)
    arguments.positive_number("ratio", ratio)
    arguments.rate("label_smoothing", label_smoothing)
    for name, data in (("labelled", labelled), ("pseudo_labelled", pseudo_labelled)):
        _check_parts(name, data, 2)
    names = (getattr(data, "class_names", ()) for data in (pseudo_labelled, labelled))
    arguments.same_classes("pseudo_labelled", *names, "`labelled`")

    def per_class(labels, smoothed):
        if labels.shape.rank == 1:
            labels, smoothed = tf.one_hot(labels, num_classes), True
        labels = tf.ensure_shape(tf.cast(labels, "float32"), (None, num_classes))
        return labels * (1 - label_smoothing) + label_smoothing / num_classes if smoothed else labels

    def join(with_labels, with_pseudo):
        parts = [with_labels, with_pseudo]
        counts = [tf.shape(labels)[0] for _, labels in parts]
        rows = tf.cast(sum(counts), "float32")
        images = tf.concat([images for images, _ in parts], 0)
        labels = tf.concat([per_class(with_labels[1], True), per_class(with_pseudo[1], False)], 0)
        weights = [
            tf.fill([count], scale * rows / tf.cast(count, "float32"))
            for count, scale in zip(counts, (1.0, ratio), strict=True)
        ]
        return images, labels, tf.concat(weights, 0)

    return _zipped(join, labelled, pseudo_labelled)


def with_unlabelled(
    labelled: "tf.data.Dataset", unlabelled: "tf.data.Dataset", augmented: "tf.data.Dataset"
) -> "tf.data.Dataset":
    """Joins labelled images, unlabelled images and augmented unlabelled images, for `MetaPseudoLabels`.

    The result has elements ((images, unlabelled, augmented), labels). An epoch ends when the shortest dataset ends.

    Args:
        labelled: Batches of (images, labels).
        unlabelled: Batches of images.
        augmented: Batches of the images in `unlabelled`, augmented, in the same order. Two pipelines with the same
            source, batch size and seed have the same order. Pass `labels="none"` to both and `augment` to one of them.

    Raises:
        ValueError: If the batches of a dataset do not have the structure above.

    Example:
    >>> import tensorflow as tf
    >>> images = np.zeros((4, 8, 8, 3), "float32")
    >>> labelled = tf.data.Dataset.from_tensor_slices((images, [0, 1, 0, 1])).batch(2)
    >>> unlabelled = tf.data.Dataset.from_tensor_slices(images).batch(4)
    >>> len(keras_vit.data.with_unlabelled(labelled, unlabelled, unlabelled))
    1
    """
    for name, data, parts in (("labelled", labelled, 2), ("unlabelled", unlabelled, 1), ("augmented", augmented, 1)):
        _check_parts(name, data, parts)

    def join(with_labels, images, augmented):
        return (with_labels[0], images, augmented), with_labels[1]

    return _zipped(join, labelled, unlabelled, augmented)


def _check_parts(name, data, parts):
    spec = getattr(data, "element_spec", None)
    if spec is None or (len(spec) if isinstance(spec, tuple) else 1) != parts:
        expected = f"batches of {'(images, labels)' if parts == 2 else 'images only'}"
        raise arguments.invalid(name, expected, data if spec is None else spec)


def _zipped(join, *parts):
    """Joins datasets batch by batch with `join`. `set_epoch` of the result sets the epoch of all datasets."""
    data = tf.data.Dataset.zip(*parts).map(tf.autograph.experimental.do_not_convert(join))
    setters = [part.set_epoch for part in parts if hasattr(part, "set_epoch")]
    if setters:
        data.set_epoch = lambda number: [setter(number) for setter in setters]
    return data
