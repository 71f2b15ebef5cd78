from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.console import Progress
from keras_vit.evaluation.classification import top_k_accuracy
from keras_vit.evaluation.features import invalid, one_or_more, train_and_test

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def linear_probe_accuracy(
    model: keras.Model | None,
    train: Any,
    test: Any,
    *,
    l2: float | Sequence[float] = STRENGTHS,
    validation_split: float = 0.2,
    seed: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Trains a linear classifier on a model's frozen features of all training images, and tests it.

    The classifier is L2-regularized multinomial logistic regression on standardized features, fitted by SciPy's L-BFGS
    (`pip install scipy`). If there are several strengths, held-out training images select the most accurate one, and
    the classifier is fitted again to all training images. Arguments out of range raise a ValueError.

    Args:
        model, train, test: As in `knn_accuracy`.
        l2: Float above 0, or several; the strengths to try. The penalty is `l2 / 2` times the sum of squared weights
            without the bias.
        validation_split: Float in (0, 1), the share of the training images to hold out.
        seed: Int of at least 0, which chooses the held-out images.
        **options: `layer`, `batch_size` and `verbose` of `extract_features`.

    Returns:
        A dict: "accuracy" on the test images; "l2", the strength chosen; and "head", a built `keras.layers.Dense` from
        features (not standardized) to logits, which can replace the model's head.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=2)
    >>> images, labels = np.random.default_rng(0).normal(size=(4, 32, 32, 3)), np.array([0, 1, 0, 1])
    >>> result = linear_probe_accuracy(model, (images, labels), (images, labels), l2=1e-3, verbose=0)
    >>> model.get_layer("head").set_weights(result["head"].get_weights())

    Reference: [arXiv 2103.00020](https://arxiv.org/abs/2103.00020), appendix A.3. The paper does not standardize
    features, and finds the strength by bisection.
    """
    arguments.non_negative_int("seed", seed)
    if not arguments.rate("validation_split", validation_split) > 0:
        raise invalid("validation_split", "a number in (0, 1)", repr(validation_split))
    strengths = one_or_more("l2", l2, arguments.positive_number)
    x, labels, test_x, test_labels = train_and_test(model, train, test, **options)
    verbose = options.get("verbose", 1)
    num_classes = int(max(labels.max(), test_labels.max())) + 1
    mean, std = x.mean(axis=0, dtype="float64"), x.std(axis=0, dtype="float64")
    # A constant feature has no information, and its standard deviation is 0.
    std = np.where(std > 1e-6 * np.abs(mean), std, np.inf)
    standard = (x - mean) / std
    count = 1 if len(strengths) == 1 else len(strengths) + 1
    with Progress(None, "step", "steps", title=f"Fitting {count} linear classifiers", verbose=verbose) as progress:
        strength = strengths[0]
        if len(strengths) > 1:
            strength = _best(strengths, standard, labels, validation_split, seed, progress)
        kernel, bias = _fit(standard, labels, num_classes, strength, progress)
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
        raise invalid("train", "two images or more to choose `l2` on", len(x))
    kept, rest = order[:count], order[count:]
    scores, start = [], None
    # Fit from strong to weak, so that each fit starts near its optimum.
    for value in sorted(strengths, reverse=True):
        kernel, bias = start = _fit(x[rest], labels[rest], labels.max() + 1, value, progress, start)
        scores.append((top_k_accuracy(x[kept] @ kernel + bias, labels[kept], k=1), value))
    return max(scores)[1]


def _fit(x, labels, num_classes, l2, progress, start=None):
    """Minimizes the regularized cross-entropy by L-BFGS; returns (kernel, bias)."""
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
    # With ftol=0, only the gradient ends the search. L-BFGS estimates the curvature from the last 10 steps.
    options = {"maxiter": 1000, "gtol": 1e-6, "ftol": 0}

    def step(_):
        progress.update(progress.done + 1)

    found = minimize(loss, flat.ravel(), jac=True, method="L-BFGS-B", callback=step, options=options)
    weights = found.x.reshape(shape)
    return weights[:-1], weights[-1]
