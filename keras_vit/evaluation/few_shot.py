from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.console import Progress
from keras_vit.evaluation.features import invalid, one_or_more, train_and_test

# The strengths of the official code, from almost no regularization to weights close to 0.
STRENGTHS = tuple(2.0**i for i in range(-10, 20))
# A constant feature this large makes the bias almost free of the penalty.
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
    """Measures the accuracy of a linear classifier on frozen features of a few images per class.

    The classifier is L2-regularized least squares with targets of 1 for the class and -1 for all other classes, solved
    in closed form in NumPy. Each seed uses the strength with the lowest leave-one-out error on the training images.

    Args:
        model, train, test: As in `knn_accuracy`. The shots are drawn from the training images.
        shots: Int, images per class, at most as many as the rarest class has; None uses all.
        seeds: Int of at least 0, or several; each seed draws other shots.
        l2: Float above 0, or several; the regularization strengths to try.
        **options: `layer`, `batch_size` and `verbose` of `extract_features`.

    Returns:
        A dict: "by_seed", the test accuracy for each seed; "accuracy", their mean; "l2", the strength for each seed;
        and "by_l2", the mean test accuracy over the seeds for each strength.

    Example:

    >>> x, y = np.eye(6), np.array([0, 0, 1, 1, 2, 2])
    >>> few_shot_accuracy(None, (x, y), (x, y), shots=2, seeds=0, l2=1e-3)
    {'accuracy': 1.0, 'by_seed': {0: 1.0}, 'l2': {0: 0.001}, 'by_l2': {0.001: 1.0}}

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.1. The papers report the best strength on
    the test images, `max(result["by_l2"].values())`.
    """
    shots = arguments.optional(arguments.positive_int, "shots", shots)
    seeds = one_or_more("seeds", seeds, arguments.non_negative_int)
    strengths = one_or_more("l2", l2, arguments.positive_number)
    x, labels, test_x, test_labels = train_and_test(model, train, test, **options)
    if unknown := sorted(set(test_labels) - set(labels)):
        raise invalid("train", "images of each class that is tested", f"none of {', '.join(map(str, unknown[:10]))}")
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
    # One SVD for all strengths: with features U S V' and targets Y, the weights are V S / (S^2 + l2) U' Y.
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    targets = 2.0 * (labels[:, None] == np.arange(labels.max() + 1)) - 1
    rotated, projected, squares = u.T @ targets, test_x @ vt.T, u**2
    # The part of the targets that no weights can fit; it is 0 if there are no more images than features.
    outside = 0 if u.shape[0] == u.shape[1] else targets - u @ rotated
    accuracies, errors = [], []
    for l2 in strengths:
        predicted = (projected @ ((s / (s**2 + l2))[:, None] * rotated)).argmax(axis=1)
        accuracies.append(float(np.mean(predicted == test_labels)))
        shrink = l2 / (s**2 + l2)
        # Compute residuals and 1 - leverages in a form that does not cancel if the fit is almost exact.
        residual = outside + u @ (shrink[:, None] * rotated)
        free = np.maximum(1 - squares.sum(axis=1), 0) + squares @ shrink
        # Choosing the strength by accuracy would favor weak regularization.
        errors.append(np.mean((residual / free[:, None]) ** 2))
        progress.update(progress.done + 1)
    return accuracies, errors


def _draw(labels, shots, seed):
    """Draws the indices of `shots` images per class."""
    if shots is None:
        return np.arange(len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < shots:
        rarest = classes[counts.argmin()]
        raise invalid("shots", f"at most {counts.min()}, the images of class {rarest} to train on", shots)
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:shots] for c in classes])
