"""Classifiers on frozen features: k-nearest neighbors, few-shot and linear probes."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.console import Progress
from keras_vit.evaluation.classification import top_k_accuracy
from keras_vit.evaluation.features import invalid, one_or_more, train_and_test

# Compare at most this many test images with all training images at a time, to limit the memory.
CHUNK = 1024


def knn_accuracy(
    model: keras.Model | None, train: Any, test: Any, *, k: int = 20, temperature: float = 0.07, **options: Any
) -> float:
    """Measures the accuracy, in [0, 1], of a k-nearest-neighbor classifier on a model's frozen features.

    The class of a test image is found by a vote: the k training images with the most similar features vote for their
    own classes. The weight of a vote is exp(cosine similarity / temperature).

    Args:
        model: A `keras.Model`, as in `extract_features`, or None if `train` and `test` are features.
        train, test: The labeled training and test images, as `data` in `extract_features`. If `model` is None, pass
            features instead of images: (features, labels) of shapes (num_images, num_features) and (num_images,).
            Classes are matched by name if `train` and `test` both have `class_names`, else by position.
        k: Int, the number of neighbors, at most the number of training images.
        temperature: Float above 0; infinity gives all votes the same weight.
        **options: The arguments `layer`, `batch_size` and `verbose` of `extract_features`.

    Raises:
        ValueError: If there are fewer training images than `k`, or an argument is out of range.

    Example:
    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> images, labels = np.random.default_rng(0).normal(size=(4, 32, 32, 3)), np.array([0, 1, 0, 1])
    >>> knn_accuracy(model, (images, labels), (images, labels), k=1, verbose=0)
    1.0
    >>> knn_accuracy(None, (np.eye(3), [0, 1, 2]), (np.eye(3) + 0.1, [0, 1, 2]), k=2)
    1.0

    Reference: [arXiv 1805.01978](https://arxiv.org/abs/1805.01978), section 3.4. The default `k` is from
    [arXiv 2104.14294](https://arxiv.org/abs/2104.14294), appendix.
    """
    arguments.positive_int("k", k)
    if temperature != math.inf:
        arguments.positive_number("temperature", temperature)
    x, labels, test_x, test_labels = train_and_test(model, train, test, **options)
    if len(x) < k:
        raise invalid("k", f"at most {len(x)}, the number of training images", k)
    # The lower bound avoids a division by 0 if all features of an image are 0.
    x, test_x = (part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12) for part in (x, test_x))
    right = 0
    title, verbose = "Finding the nearest neighbors", options.get("verbose", 1)
    progress = Progress(len(test_x), "image", "images", title=title, verbose=verbose)
    for start in progress.over(range(0, len(test_x), CHUNK), lambda start: min(CHUNK, len(test_x) - start)):
        similarity = test_x[start : start + CHUNK] @ x.T
        nearest = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
        similarity = np.take_along_axis(similarity, nearest, axis=1)
        # exp(similarity / temperature) can overflow, so divide all weights by the weight of the nearest image.
        weights = np.exp((similarity - similarity.max(axis=1, keepdims=True)) / temperature)
        votes = np.zeros((len(nearest), labels.max() + 1))
        np.add.at(votes, (np.arange(len(nearest))[:, None], labels[nearest]), weights)
        right += int((votes.argmax(axis=1) == test_labels[start : start + CHUNK]).sum())
    return right / len(test_labels)


# The regularization strengths that the ViT paper's official code tries. The lowest has almost no effect, and the
# highest makes all weights nearly 0.
STRENGTHS = tuple(2.0**i for i in range(-10, 20))
# A feature with this constant value is added. The weight of this feature times the value is the bias. The value is
# large, so the weight is small, and L2 hardly penalizes the bias.
BIAS = 100.0


def few_shot_accuracy(
    model: keras.Model | None,
    train: Any,
    test: Any,
    *,
    shots: int | None = 10,
    seeds: int | Sequence[int] = (0, 1, 2),
    l2: float | Sequence[float] = STRENGTHS,
    **options: Any,
) -> dict[str, Any]:
    """Measures the accuracy of a linear classifier that is fitted to frozen features of a few images per class.

    The classifier is fitted by L2-regularized least squares, in closed form in NumPy. The target is 1 for the class of
    an image and -1 for all other classes. Each seed selects a random subset of the training images. The regularization
    strength with the lowest leave-one-out error on this subset is used.

    Args:
        model, train, test: As in `knn_accuracy`. The classifier is fitted to a random subset of the images in `train`.
        shots: Int, the number of training images per class, at most the number of images of the rarest class. None uses
            all images.
        seeds: Int of at least 0, or several; the random seeds that select the training images.
        l2: Float above 0, or several; the regularization strengths to try.
        **options: The arguments `layer`, `batch_size` and `verbose` of `extract_features`.

    Returns:
        A dict: "by_seed", the test accuracy for each seed; "accuracy", the mean of these accuracies; "l2", the selected
        strength for each seed; and "by_l2", the mean test accuracy over the seeds for each strength.

    Raises:
        ValueError: If a class has fewer images than `shots`, or an argument is out of range.

    Example:
    >>> x, y = np.eye(6), np.array([0, 0, 1, 1, 2, 2])
    >>> few_shot_accuracy(None, (x, y), (x, y), shots=2, seeds=0, l2=1e-3)
    {'accuracy': 1.0, 'by_seed': {0: 1.0}, 'l2': {0: 0.001}, 'by_l2': {0.001: 1.0}}

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.1. The paper reports the accuracy of the
    strength that is best on the test images, `max(result["by_l2"].values())`.
    """
    shots = arguments.optional(arguments.positive_int, "shots", shots)
    seeds = one_or_more("seeds", seeds, arguments.non_negative_int)
    strengths = one_or_more("l2", l2, arguments.positive_number)
    x, labels, test_x, test_labels = train_and_test(model, train, test, **options)
    if unknown := sorted(set(test_labels) - set(labels)):
        raise invalid("train", "images of all test classes", f"no image of class {', '.join(map(str, unknown[:10]))}")
    verbose = options.get("verbose", 1)
    by_seed, chosen, accuracies, count = {}, {}, [], len(seeds) * len(strengths)
    with Progress(count, "classifier", "classifiers", title="Fitting linear classifiers", verbose=verbose) as progress:
        for seed in seeds:
            rows = _draw(labels, shots, seed)
            of_seed, errors = _fit(x[rows], labels[rows], test_x, test_labels, strengths, progress)
            best = int(np.argmin(errors))
            by_seed[seed], chosen[seed] = of_seed[best], strengths[best]
            accuracies.append(of_seed)
    by_strength = dict(zip(strengths, np.mean(accuracies, axis=0).tolist(), strict=True))
    mean = float(np.mean(list(by_seed.values())))
    return {"accuracy": mean, "by_seed": by_seed, "l2": chosen, "by_l2": by_strength}


def _fit(x, labels, test_x, test_labels, strengths, progress):
    """Returns the test accuracy and the leave-one-out mean squared error on the training images, for each strength."""
    x = x.astype("float64")
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5
    x, test_x = (np.pad((part - mean) / std, ((0, 0), (0, 1)), constant_values=BIAS) for part in (x, test_x))
    # Compute one SVD for all strengths. For features U S V' and targets Y, the weights are V S / (S^2 + l2) U' Y.
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    targets = 2.0 * (labels[:, None] == np.arange(labels.max() + 1)) - 1
    rotated, projected, squares = u.T @ targets, test_x @ vt.T, u**2
    # This is the part of the targets that no weights can fit. It is 0 if there are at most as many images as features.
    outside = 0 if u.shape[0] == u.shape[1] else targets - u @ rotated
    accuracies, errors = [], []
    for l2 in strengths:
        predicted = (projected @ ((s / (s**2 + l2))[:, None] * rotated)).argmax(axis=1)
        accuracies.append(float(np.mean(predicted == test_labels)))
        shrink = l2 / (s**2 + l2)
        # Compute residuals and 1 - leverages without subtracting nearly equal numbers, which would lose precision.
        residual = outside + u @ (shrink[:, None] * rotated)
        free = np.maximum(1 - squares.sum(axis=1), 0) + squares @ shrink
        # Choose the strength by the squared error, because accuracy would favor weak regularization.
        errors.append(np.mean((residual / free[:, None]) ** 2))
        progress.update(progress.done + 1)
    return accuracies, errors


def _draw(labels, shots, seed):
    """Returns the indices of `shots` randomly selected images per class."""
    if shots is None:
        return np.arange(len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < shots:
        rarest = classes[counts.argmin()]
        raise invalid("shots", f"at most {counts.min()}, the number of training images of class {rarest}", shots)
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:shots] for c in classes])


L2_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def linear_probe_accuracy(
    model: keras.Model | None,
    train: Any,
    test: Any,
    *,
    l2: float | Sequence[float] = L2_STRENGTHS,
    validation_split: float = 0.2,
    seed: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Fits a linear classifier to the frozen features that a model computes for training images, and tests it.

    The classifier is L2-regularized multinomial logistic regression on standardized features, fitted by SciPy's L-BFGS
    (`pip install scipy`). If there are several regularization strengths, a part of the training images is held out, and
    the strength with the best accuracy on this part is selected. Then the classifier is fitted again to all training
    images. Arguments out of range raise a ValueError.

    Args:
        model, train, test: As in `knn_accuracy`.
        l2: Float above 0, or several; the regularization strengths to try. The penalty is `l2 / 2` times the sum of
            squared weights without the bias.
        validation_split: Float in (0, 1), the share of the training images to hold out.
        seed: Int of at least 0, the random seed that selects the held-out images.
        **options: The arguments `layer`, `batch_size` and `verbose` of `extract_features`.

    Returns:
        A dict: "accuracy", measured on the test images; "l2", the selected strength; and "head", a built
        `keras.layers.Dense` that maps features (not standardized) to logits. The example below copies the weights of
        this layer into the model's head.

    Example:
    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=2)
    >>> images, labels = np.random.default_rng(0).normal(size=(4, 32, 32, 3)), np.array([0, 1, 0, 1])
    >>> result = linear_probe_accuracy(model, (images, labels), (images, labels), l2=1e-3, verbose=0)
    >>> model.get_layer("head").set_weights(result["head"].get_weights())

    Reference: [arXiv 2103.00020](https://arxiv.org/abs/2103.00020), appendix A.3. The paper does not standardize
    features, and finds the strength by bisection.
    """
    arguments.non_negative_int("seed", seed)
    arguments.fraction("validation_split", validation_split)
    strengths = one_or_more("l2", l2, arguments.positive_number)
    x, labels, test_x, test_labels = train_and_test(model, train, test, **options)
    verbose = options.get("verbose", 1)
    num_classes = int(max(labels.max(), test_labels.max())) + 1
    mean, std = x.mean(axis=0, dtype="float64"), x.std(axis=0, dtype="float64")
    # A constant feature has no information, and its standard deviation is 0. Dividing the feature by infinity gives 0.
    std = np.where(std > 1e-6 * np.abs(mean), std, np.inf)
    standard = (x - mean) / std
    count = 1 if len(strengths) == 1 else len(strengths) + 1
    with Progress(None, "step", "steps", title=f"Fitting {count} linear classifiers", verbose=verbose) as progress:
        strength = strengths[0]
        if len(strengths) > 1:
            strength = _best(strengths, standard, labels, validation_split, seed, progress)
        kernel, bias = _minimized(standard, labels, num_classes, strength, progress)
    kernel = kernel / std[:, None]
    bias = bias - mean @ kernel
    head = keras.layers.Dense(num_classes, dtype="float32", name="head")
    head.build((None, x.shape[1]))
    head.set_weights([kernel.astype("float32"), bias.astype("float32")])
    accuracy = top_k_accuracy(test_x @ kernel + bias, test_labels, k=1)
    return {"accuracy": accuracy, "l2": strength, "head": head}


def _best(strengths, x, labels, validation_split, seed, progress):
    """Returns the strength with the best accuracy on held-out images."""
    order = np.random.default_rng(seed).permutation(len(x))
    count = min(max(1, round(len(x) * validation_split)), len(x) - 1)
    if not count:
        raise invalid("train", "two or more images, because some are held out to select `l2`", len(x))
    kept, rest = order[:count], order[count:]
    scores, start = [], None
    # Try the strongest regularization first. Each fit then starts at the previous weights, which are near its optimum.
    for value in sorted(strengths, reverse=True):
        kernel, bias = start = _minimized(x[rest], labels[rest], labels.max() + 1, value, progress, start)
        scores.append((top_k_accuracy(x[kept] @ kernel + bias, labels[kept], k=1), value))
    return max(scores)[1]


def _minimized(x, labels, num_classes, l2, progress, start=None):
    """Minimizes the regularized cross-entropy by L-BFGS from the weights `start`; returns (kernel, bias)."""
    try:
        from scipy.optimize import minimize
    except ImportError as error:
        raise ImportError("linear_probe_accuracy needs SciPy: pip install scipy") from error
    targets = np.zeros((len(labels), num_classes))
    targets[np.arange(len(labels)), labels] = 1
    shape = (x.shape[1] + 1, num_classes)

    def loss(flat):
        weights = flat.reshape(shape)
        logits = x @ weights[:-1] + weights[-1]
        logits -= logits.max(axis=1, keepdims=True)
        exp = np.exp(logits)
        total = exp.sum(axis=1, keepdims=True)
        value = np.mean(np.log(total[:, 0]) - (logits * targets).sum(axis=1)) + l2 / 2 * np.sum(weights[:-1] ** 2)
        error = (exp / total - targets) / len(x)
        gradient = np.concatenate([x.T @ error + l2 * weights[:-1], error.sum(axis=0, keepdims=True)])
        return value, gradient.ravel()

    flat = np.zeros(shape) if start is None else np.concatenate([start[0], start[1][None]])
    # With ftol=0, the search ends only when the gradient is small or after `maxiter` steps.
    options = {"maxiter": 1000, "gtol": 1e-6, "ftol": 0}

    def step(_):
        progress.update(progress.done + 1)

    found = minimize(loss, flat.ravel(), jac=True, method="L-BFGS-B", callback=step, options=options)
    weights = found.x.reshape(shape)
    return weights[:-1], weights[-1]
