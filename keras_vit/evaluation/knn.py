import math

import numpy as np

from keras_vit import arguments
from keras_vit.evaluation.features import checked_pair, extract_features

# Test images a step, which bounds the memory that their similarities to all training images take.
CHUNK = 1024


def knn_accuracy(model, train, test, *, k=20, temperature=0.07, layer=None, batch_size=32, verbose=1):
    """Measures how often the nearest training images, by a model's frozen features, tell the class of an image.

    The k images of the highest cosine similarity vote, each with weight exp(similarity / temperature). It is computed
    in NumPy.

    Args:
        model: A `keras.Model`, as in `extract_features`.
        train: The images to look among, with labels, as `data` in `extract_features`.
        test: The images to test on, likewise.
        k: Int, how many neighbours vote.
        temperature: Float above 0; infinity gives all votes the same weight.
        layer: As in `extract_features`.
        batch_size: As in `extract_features`.
        verbose: As in `extract_features`.

    Returns:
        Float, the share of the test images whose class is told.

    Raises:
        ValueError: If there are fewer training images than `k`, or an argument is out of its range.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> images, labels = np.random.default_rng(0).normal(size=(4, 32, 32, 3)), np.array([0, 1, 0, 1])
    >>> knn_accuracy(model, (images, labels), (images, labels), k=1, verbose=0)
    1.0

    Reference: [arXiv 1805.01978](https://arxiv.org/abs/1805.01978), section 3.4;
    [arXiv 2104.14294](https://arxiv.org/abs/2104.14294), appendix, with k=20.
    """
    _check_options(k, temperature)
    options = {"layer": layer, "batch_size": batch_size, "verbose": verbose}
    features = (*extract_features(model, train, **options), *extract_features(model, test, **options))
    return knn_from_features(*features, k=k, temperature=temperature)


def knn_from_features(train_features, train_labels, test_features, test_labels, *, k=20, temperature=0.07):
    """Does what `knn_accuracy` does on features that are already there.

    Args:
        train_features: (num_images, num_features), to look among.
        train_labels: (num_images,), classes counted from 0, or one-hot.
        test_features: (num_images, num_features).
        test_labels: (num_images,), likewise.
        k: As in `knn_accuracy`.
        temperature: As in `knn_accuracy`.

    Returns:
        Float, the share of the test images whose class is told.

    Raises:
        ValueError: As `knn_accuracy`.

    Example:

    >>> x, y = np.eye(3), np.array([0, 1, 2])
    >>> knn_from_features(x, y, x + 0.1, y, k=2)
    1.0
    """
    _check_options(k, temperature)
    train_features, train_labels = checked_pair("train", train_features, train_labels)
    test_features, test_labels = checked_pair("test", test_features, test_labels, train_features.shape[1])
    if len(train_features) < k:
        raise ValueError(
            f"Invalid value received for argument `k`. Expected at most {len(train_features)}, the number of training "
            f"images. Received: {k}"
        )
    train_features, test_features = _unit(train_features), _unit(test_features)
    num_classes = train_labels.max() + 1
    right = 0
    for start in range(0, len(test_features), CHUNK):
        similarity = test_features[start : start + CHUNK] @ train_features.T
        nearest = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
        similarity = np.take_along_axis(similarity, nearest, axis=1)
        # Relative to the nearest, since exp of 1 / temperature can overflow.
        weights = np.exp((similarity - similarity.max(axis=1, keepdims=True)) / temperature)
        votes = np.zeros((len(nearest), num_classes))
        np.add.at(votes, (np.arange(len(nearest))[:, None], train_labels[nearest]), weights)
        right += int((votes.argmax(axis=1) == test_labels[start : start + CHUNK]).sum())
    return right / len(test_labels)


def _unit(features):
    """Features of length 1; zeros stay zeros."""
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def _check_options(k, temperature):
    arguments.positive_int("k", k)
    if temperature != math.inf:
        arguments.positive_number("temperature", temperature)
