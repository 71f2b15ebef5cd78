import dataclasses

import numpy as np

from keras_vit import arguments
from keras_vit.evaluation.features import checked_pair, extract_features

# As in the official code: from almost nothing to almost only the bias.
STRENGTHS = tuple(2.0**i for i in range(-10, 20))
# A constant feature this large makes the bias almost free of the penalty.
BIAS = 100.0


@dataclasses.dataclass(frozen=True)
class FewShotResult:
    """The accuracy of few-shot classifiers on frozen features. `float(result)` is its `accuracy`.

    Args:
        accuracy: Float, the mean of `by_seed`.
        by_seed: Mapping from each seed to the test accuracy with the strength in `l2`.
        l2: Mapping from each seed to the strength that was chosen: the one with the least squared error where each
            training image is predicted from all others.
        by_l2: Mapping from each strength to its test accuracy, the mean over the seeds.
    """

    accuracy: float
    by_seed: dict
    l2: dict
    by_l2: dict

    def __float__(self):
        return self.accuracy


def few_shot_accuracy(
    model, train, test, *, shots=10, seeds=(0, 1, 2), l2=STRENGTHS, layer=None, batch_size=32, verbose=1
):
    """Measures how well a linear classifier does on a model's frozen features of a few images a class.

    The classifier is the L2-regularised least-squares regression of the features to targets of 1 for the class and -1
    for the others, in closed form. All strengths share one factorisation. It is computed in NumPy, so that the answer
    does not depend on the backend. The features of all images are computed once.

    Args:
        model: A `keras.Model`, as in `extract_features`.
        train: The images to draw the shots from, with labels, as `data` in `extract_features`.
        test: The images to test on, likewise.
        shots: Int, the images a class; None takes all.
        seeds: Ints, one draw of the shots for each.
        l2: Floats, the strengths of the regularisation, or one float.
        layer: As in `extract_features`.
        batch_size: As in `extract_features`.
        verbose: As in `extract_features`.

    Returns:
        A `FewShotResult`.

    Raises:
        ValueError: If a class has fewer images than `shots`, or an argument is out of its range.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> images, labels = np.random.default_rng(0).normal(size=(8, 32, 32, 3)), np.array([0, 1] * 4)
    >>> result = few_shot_accuracy(model, (images, labels), (images, labels), shots=3, verbose=0)
    >>> 0 <= result.accuracy <= 1
    True

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.1. The papers report the best strength
    on the images that they report; here it is chosen on the training images. Theirs is `max(result.by_l2.values())`.
    """
    options = {"layer": layer, "batch_size": batch_size, "verbose": verbose}
    _checked_options(shots, seeds, l2)
    features = (*extract_features(model, train, **options), *extract_features(model, test, **options))
    return few_shot_from_features(*features, shots=shots, seeds=seeds, l2=l2)


def few_shot_from_features(
    train_features, train_labels, test_features, test_labels, *, shots=10, seeds=(0, 1, 2), l2=STRENGTHS
):
    """Does what `few_shot_accuracy` does on features that are already there.

    Args:
        train_features: (num_images, num_features), to draw the shots from.
        train_labels: (num_images,), classes counted from 0, or one-hot.
        test_features: (num_images, num_features).
        test_labels: (num_images,), likewise.
        shots: As in `few_shot_accuracy`.
        seeds: As in `few_shot_accuracy`.
        l2: As in `few_shot_accuracy`.

    Returns:
        A `FewShotResult`.

    Raises:
        ValueError: As `few_shot_accuracy`.

    Example:

    >>> x, y = np.eye(6), np.array([0, 0, 1, 1, 2, 2])
    >>> few_shot_from_features(x, y, x, y, shots=2, l2=1e-3).accuracy
    1.0
    """
    shots, seeds, strengths = _checked_options(shots, seeds, l2)
    train_features, train_labels = checked_pair("train", train_features, train_labels)
    test_features, test_labels = checked_pair("test", test_features, test_labels, train_features.shape[1])
    if unknown := sorted(set(test_labels) - set(train_labels)):
        raise ValueError(
            "Invalid value received for argument `train_labels`. Expected images of each class that is tested. "
            f"Received: none of {', '.join(map(str, unknown[:10]))}"
        )
    num_classes = train_labels.max() + 1
    accuracies, chosen = [], []
    for seed in seeds:
        rows = _draw(train_labels, shots, seed)
        fit = _Factorisation(train_features[rows], train_labels[rows], num_classes)
        test = fit.project(test_features)
        accuracies.append([float(np.mean(fit.predict(test, strength) == test_labels)) for strength in strengths])
        chosen.append(int(np.argmin([fit.leave_one_out(strength) for strength in strengths])))
    by_seed = {seed: row[i] for seed, row, i in zip(seeds, accuracies, chosen, strict=True)}
    return FewShotResult(
        accuracy=float(np.mean(list(by_seed.values()))),
        by_seed=by_seed,
        l2={seed: strengths[i] for seed, i in zip(seeds, chosen, strict=True)},
        by_l2=dict(zip(strengths, np.mean(accuracies, axis=0).tolist(), strict=True)),
    )


class _Factorisation:
    """The regressions of all strengths from the one singular value decomposition of the training features.

    With features U S V' and targets Y, the weights are V S / (S^2 + l2) U' Y.
    """

    def __init__(self, features, labels, num_classes):
        features = features.astype("float64")
        self.mean, self.std = features.mean(axis=0), features.std(axis=0) + 1e-5
        self.u, self.s, self.vt = np.linalg.svd(self._standardize(features), full_matrices=False)
        self.targets = 2.0 * (labels[:, None] == np.arange(num_classes)) - 1
        self.rotated = self.u.T @ self.targets
        # What no weights can fit of the targets; nothing where there are no more images than features.
        self.outside = 0 if self.u.shape[0] == self.u.shape[1] else self.targets - self.u @ self.rotated

    def _standardize(self, features):
        return np.pad((features - self.mean) / self.std, ((0, 0), (0, 1)), constant_values=BIAS)

    def project(self, features):
        """Features in the basis of the singular vectors, which is the same for all strengths."""
        return self._standardize(features) @ self.vt.T

    def predict(self, projected, l2):
        """The classes of projected features."""
        return (projected @ ((self.s / (self.s**2 + l2))[:, None] * self.rotated)).argmax(axis=1)

    def leave_one_out(self, l2):
        """The mean squared error of predicting each image's targets from all other images.

        Not the accuracy: with one image of a class left out the bias turns against it, which costs strong
        regularisation much accuracy that it has on other images.
        """
        shrink = l2 / (self.s**2 + l2)
        # The residuals and one minus the leverages, written so that neither cancels where the fit is almost exact.
        residual = self.outside + self.u @ (shrink[:, None] * self.rotated)
        squares = self.u**2
        free = np.maximum(1 - squares.sum(axis=1), 0) + squares @ shrink
        return np.mean((residual / free[:, None]) ** 2)


def _draw(labels, shots, seed):
    """The indices of the images of one draw, the same number of each class."""
    if shots is None:
        return np.arange(len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < shots:
        raise ValueError(
            f"Invalid value received for argument `shots`. Expected at most {counts.min()}, the images of class "
            f"{classes[counts.argmin()]} to train on. Received: {shots}"
        )
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:shots] for c in classes])


def _checked_options(shots, seeds, l2):
    if shots is not None:
        shots = arguments.positive_int("shots", shots)
    seeds = [arguments.non_negative_int("seeds", seed) for seed in (seeds if np.ndim(seeds) else [seeds])]
    strengths = [arguments.positive_number("l2", value) for value in (l2 if np.ndim(l2) else [l2])]
    for name, values in (("seeds", seeds), ("l2", strengths)):
        if not values:
            raise ValueError(f"Invalid value received for argument `{name}`. Expected at least one. Received: none")
    return shots, seeds, strengths
