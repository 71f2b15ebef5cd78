import functools
from importlib import resources

import numpy as np
from keras import ops


@functools.cache
def imagenet_classes():
    """The 1000 ILSVRC2012 classes in the order of the logits, each (WordNet id, name)."""
    text = resources.files(__package__).joinpath("imagenet1k_classes.txt").read_text(encoding="utf-8")
    return tuple(tuple(line.split(" ", 1)) for line in text.splitlines())


def decode_predictions(predictions, top: int = 5) -> list[list[tuple[str, str, float]]]:
    """Names the most probable ImageNet classes of each image. The names come with the package; nothing is downloaded.

    Args:
        predictions: Probabilities, (batch, 1000), as `keras.ops.softmax(logits)` returns them: an array or tensor.
        top: Int, how many classes to return for each image.

    Returns:
        For each image a list of (WordNet id, name, probability), most probable first.

    Raises:
        ValueError: If the shape is not (batch, 1000), the rows are no probabilities (logits), or `top` is not in
            1..1000.

    Example:

    >>> keras_vit.decode_predictions(np.eye(1000)[[285]], top=1)
    [[('n02124075', 'Egyptian_cat', 1.0)]]
    """
    classes = imagenet_classes()
    p = np.asarray(ops.convert_to_numpy(predictions), "float64")
    if p.ndim != 2 or p.shape[1] != len(classes):
        raise ValueError(f"Expected probabilities of shape (batch, {len(classes)}). Received: shape {p.shape}")
    if not 1 <= top <= len(classes):
        raise ValueError(f"Expected `top` between 1 and {len(classes)}. Received: top={top}")
    # The bound allows for rows that were normalised in half precision.
    if p.size and not (p.min() >= 0 and np.abs(p.sum(axis=1) - 1).max() < 0.02):
        raise ValueError(
            "Expected probabilities: rows of non-negative numbers that sum to 1. Received: numbers from "
            f"{p.min():.4g} to {p.max():.4g}, rows that sum to {p[0].sum():.4g} (the first). "
            "Where these are logits, apply keras.ops.softmax first."
        )
    best = np.argsort(-p, axis=1)[:, :top]
    return [[(*classes[i], float(row[i])) for i in order] for row, order in zip(p, best, strict=True)]
