import math
from typing import Any

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.console import Progress
from keras_vit.evaluation.features import invalid, train_and_test

# Test images per step; it limits the memory for their similarities to all training images.
CHUNK = 1024


def knn_accuracy(
    model: keras.Model | None, train: Any, test: Any, *, k: int = 20, temperature: float = 0.07, **options: Any
) -> float:
    """Measures the accuracy, in [0, 1], of a k-nearest-neighbor classifier on a model's frozen features.

    The k training images with the highest cosine similarity vote, each with weight exp(similarity / temperature).

    Args:
        model: A `keras.Model`, as in `extract_features`, or None if `train` and `test` are features.
        train, test: The labeled training and test images, as `data` in `extract_features`. If `model` is None,
            (features, labels) of shapes (num_images, num_features) and (num_images,). Classes are matched by name if
            both have `class_names`, else by position.
        k: Int, the number of neighbors, at most the number of training images.
        temperature: Float above 0; infinity gives all votes the same weight.
        **options: `layer`, `batch_size` and `verbose` of `extract_features`.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> images, labels = np.random.default_rng(0).normal(size=(4, 32, 32, 3)), np.array([0, 1, 0, 1])
    >>> knn_accuracy(model, (images, labels), (images, labels), k=1, verbose=0)
    1.0
    >>> knn_accuracy(None, (np.eye(3), [0, 1, 2]), (np.eye(3) + 0.1, [0, 1, 2]), k=2)
    1.0

    Reference: [arXiv 1805.01978](https://arxiv.org/abs/1805.01978), section 3.4; k=20: [arXiv
    2104.14294](https://arxiv.org/abs/2104.14294), appendix.
    """
    arguments.positive_int("k", k)
    if temperature != math.inf:
        arguments.positive_number("temperature", temperature)
    x, labels, test_x, test_labels = train_and_test(model, train, test, **options)
    if len(x) < k:
        raise invalid("k", f"at most {len(x)}, the number of training images", k)
    # Features of zeros stay zeros.
    x, test_x = (part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12) for part in (x, test_x))
    right = 0
    title, verbose = "Finding the nearest neighbors", options.get("verbose", 1)
    progress = Progress(len(test_x), "image", "images", title=title, verbose=verbose)
    for start in progress.over(range(0, len(test_x), CHUNK), lambda start: min(CHUNK, len(test_x) - start)):
        similarity = test_x[start : start + CHUNK] @ x.T
        nearest = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
        similarity = np.take_along_axis(similarity, nearest, axis=1)
        # exp(1 / temperature) can overflow, so compute weights relative to the nearest image.
        weights = np.exp((similarity - similarity.max(axis=1, keepdims=True)) / temperature)
        votes = np.zeros((len(nearest), labels.max() + 1))
        np.add.at(votes, (np.arange(len(nearest))[:, None], labels[nearest]), weights)
        right += int((votes.argmax(axis=1) == test_labels[start : start + CHUNK]).sum())
    return right / len(test_labels)
