import dataclasses

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.evaluation.features import checked_pair, extract_features
from keras_vit.evaluation.top_k import top_k_accuracy

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
# The pairs of steps from which the curvature is estimated; 10 is the usual number.
MEMORY = 10


@dataclasses.dataclass(frozen=True)
class LinearProbeResult:
    """The accuracy of a linear classifier on frozen features. `float(result)` is its `accuracy`.

    Args:
        accuracy: Float, on the test images.
        l2: Float, the strength of the regularisation that was chosen.
        head: A built `keras.layers.Dense` from the features as they are to logits.
    """

    accuracy: float
    l2: float
    head: keras.layers.Dense

    def __float__(self):
        return self.accuracy


def linear_probe_accuracy(
    model, train, test, *, l2=STRENGTHS, validation_split=0.2, seed=0, layer=None, batch_size=32, verbose=1
):
    """Fits a linear classifier to a model's frozen features of all training images, and tests it.

    It is the multinomial logistic regression of the standardised features, L2-regularised, fitted to its one optimum by
    L-BFGS on all images at once, in NumPy. Of several strengths it takes the one that does best on a part of the
    training images that is kept from a first fit. The features are computed once.

    Args:
        model: A `keras.Model`, as in `extract_features`.
        train: The images to fit to, with labels, as `data` in `extract_features`.
        test: The images to test on, likewise.
        l2: Floats, the strengths, or one float: the loss is the mean cross-entropy plus `l2 / 2` times the sum of the
            squared weights, without the bias.
        validation_split: Float in (0, 1), the share of the training images on which the strength is chosen.
        seed: Int of at least 0, of their choice.
        layer: As in `extract_features`.
        batch_size: As in `extract_features`.
        verbose: As in `extract_features`.

    Returns:
        A `LinearProbeResult`. Its `head` can take the place of the model's own.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=2)
    >>> images, labels = np.random.default_rng(0).normal(size=(4, 32, 32, 3)), np.array([0, 1, 0, 1])
    >>> result = linear_probe_accuracy(model, (images, labels), (images, labels), l2=1e-3, verbose=0)
    >>> model.get_layer("head").set_weights(result.head.get_weights())

    Reference: [arXiv 2103.00020](https://arxiv.org/abs/2103.00020), appendix A.3; there without standardising, and the
    strengths by bisection.
    """
    _checked_options(l2, validation_split, seed)
    options = {"layer": layer, "batch_size": batch_size, "verbose": verbose}
    features = (*extract_features(model, train, **options), *extract_features(model, test, **options))
    return linear_probe_from_features(*features, l2=l2, validation_split=validation_split, seed=seed)


def linear_probe_from_features(
    train_features, train_labels, test_features, test_labels, *, l2=STRENGTHS, validation_split=0.2, seed=0
):
    """Does what `linear_probe_accuracy` does on features that are already there.

    Args:
        train_features: (num_images, num_features), to fit to.
        train_labels: (num_images,), classes counted from 0, or one-hot.
        test_features: (num_images, num_features).
        test_labels: (num_images,), likewise.
        l2: As in `linear_probe_accuracy`.
        validation_split: As in `linear_probe_accuracy`.
        seed: As in `linear_probe_accuracy`.

    Returns:
        A `LinearProbeResult`.

    Raises:
        ValueError: As `linear_probe_accuracy`.

    Example:

    >>> x, y = np.eye(6), np.array([0, 0, 1, 1, 2, 2])
    >>> linear_probe_from_features(x, y, x, y, l2=1e-3).accuracy
    1.0
    """
    strengths = _checked_options(l2, validation_split, seed)
    x, labels = checked_pair("train", train_features, train_labels)
    test_x, test_labels = checked_pair("test", test_features, test_labels, x.shape[1])
    num_classes = int(max(labels.max(), test_labels.max())) + 1
    mean, std = x.mean(axis=0, dtype="float64"), x.std(axis=0, dtype="float64")
    # A feature that is the same for all images tells nothing, and would be divided by nothing.
    std = np.where(std > 1e-6 * np.abs(mean), std, np.inf)
    standard = (x - mean) / std
    strength = strengths[0]
    if len(strengths) > 1:
        order = np.random.default_rng(seed).permutation(len(x))
        count = min(max(1, round(len(x) * validation_split)), len(x) - 1)
        if not count:
            raise ValueError(
                "Invalid value received for argument `train_features`. Expected two images or more to choose `l2` on. "
                f"Received: {len(x)}"
            )
        kept, rest = order[:count], order[count:]
        scores, start = [], None
        # From strong to weak, each from the last one's optimum, which is near.
        for value in sorted(strengths, reverse=True):
            kernel, bias = start = _fit(standard[rest], labels[rest], num_classes, value, start)
            scores.append((top_k_accuracy(standard[kept] @ kernel + bias, labels[kept], k=1), value))
        strength = max(scores)[1]
    kernel, bias = _fit(standard, labels, num_classes, strength)
    kernel = kernel / std[:, None]
    bias = bias - mean @ kernel
    head = keras.layers.Dense(num_classes, dtype="float32", name="head")
    head.build((None, x.shape[1]))
    head.set_weights([kernel.astype("float32"), bias.astype("float32")])
    accuracy = top_k_accuracy(test_x @ kernel + bias, test_labels, k=1)
    return LinearProbeResult(accuracy=accuracy, l2=strength, head=head)


def _fit(x, labels, num_classes, l2, start=None, max_steps=1000, tolerance=1e-6):
    """The (kernel, bias) of the least regularised cross-entropy."""
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

    flat = np.zeros(shape).ravel() if start is None else np.concatenate([start[0], start[1][None]]).ravel()
    value, gradient = loss(flat)
    pairs = []
    for _ in range(max_steps):
        if np.abs(gradient).max() <= tolerance:
            break
        direction = -_inverse_curvature(gradient, pairs)
        slope = gradient @ direction
        step = 1.0 if pairs else 1 / max(1.0, np.abs(gradient).sum())
        # Halved until it lowers the loss enough; the loss is convex, so that a small enough step does.
        while True:
            new_value, new_gradient = loss(flat + step * direction)
            if new_value <= value + 1e-4 * step * slope or step < 1e-10:
                break
            step /= 2
        if step < 1e-10:
            break
        move, turn = step * direction, new_gradient - gradient
        if move @ turn > 1e-12 * (turn @ turn):
            pairs = [*pairs, (move, turn)][-MEMORY:]
        flat, value, gradient = flat + move, new_value, new_gradient
    weights = flat.reshape(shape)
    return weights[:-1], weights[-1]


def _inverse_curvature(gradient, pairs):
    """The gradient times the inverse Hessian that L-BFGS estimates from the last steps (Nocedal, algorithm 7.4)."""
    q, factors = gradient.copy(), []
    for move, turn in reversed(pairs):
        factors.append(move @ q / (move @ turn))
        q -= factors[-1] * turn
    if pairs:
        move, turn = pairs[-1]
        q *= move @ turn / (turn @ turn)
    for (move, turn), factor in zip(pairs, reversed(factors), strict=True):
        q += move * (factor - turn @ q / (move @ turn))
    return q


def _checked_options(l2, validation_split, seed):
    arguments.non_negative_int("seed", seed)
    strengths = [arguments.positive_number("l2", value) for value in (l2 if np.ndim(l2) else [l2])]
    if not strengths:
        raise ValueError("Invalid value received for argument `l2`. Expected at least one. Received: none")
    if not arguments.rate("validation_split", validation_split) > 0:
        raise ValueError(
            "Invalid value received for argument `validation_split`. Expected a number in (0, 1). "
            f"Received: {validation_split!r}"
        )
    return strengths
