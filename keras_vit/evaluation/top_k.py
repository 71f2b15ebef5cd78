import numpy as np

from keras_vit import arguments
from keras_vit.evaluation.features import checked_features, integer_labels, outputs_and_labels


def accuracy(model, data, *, k=(1, 5), batch_size=32, verbose=1):
    """Measures how often a classifier's highest, or one of its k highest, outputs is the image's class.

    The model need not be compiled. A compiled model's `model.evaluate` does the same with `keras.metrics`; but where
    classes have the same output, as with a head that is still zero, those count an image as right whose class is among
    more than k, and here the lower class goes first.

    Args:
        model: A `keras.Model` with one output, logits or probabilities.
        data: The images to test on, with labels, as in `extract_features`.
        k: Ints, or one int.
        batch_size: As in `extract_features`.
        verbose: As in `extract_features`.

    Returns:
        Mapping from "top_1", "top_5", ... to the accuracy.

    Raises:
        ValueError: If an argument is out of its range, there is a label without an output, or the outputs are not
            finite.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=10)
    >>> accuracy(model, (np.zeros((4, 32, 32, 3)), np.array([0, 1, 4, 9])), verbose=0)
    {'top_1': 0.25, 'top_5': 0.75}
    """
    counts = [arguments.positive_int("k", value) for value in (k if np.ndim(k) else [k])]
    outputs, labels = outputs_and_labels(model, data, batch_size, verbose)
    return {f"top_{count}": top_k_accuracy(outputs, labels, k=count) for count in counts}


def top_k_accuracy(predictions, labels, *, k=1):
    """Measures how often the image's class is one of those with the k highest outputs.

    Args:
        predictions: (num_images, num_classes), logits or probabilities.
        labels: (num_images,), classes counted from 0, or one-hot.
        k: Int, at most the number of classes.

    Returns:
        Float. Of classes with the same output the lower ones go first.

    Raises:
        ValueError: If an argument is out of its range, there is a label without an output, or the outputs are not
            finite.

    Example:

    >>> top_k_accuracy([[0.1, 0.7, 0.2], [0.5, 0.1, 0.4]], [1, 2], k=2)
    1.0
    """
    predictions, labels = checked_features("predictions", predictions), integer_labels(labels)
    if len(predictions) != len(labels):
        raise ValueError(
            f"Invalid value received for argument `labels`. Expected one a prediction, {len(predictions)}. "
            f"Received: {len(labels)}"
        )
    num_classes = predictions.shape[1]
    if labels.max() >= num_classes:
        raise ValueError(
            f"Invalid value received for argument `labels`. Expected classes below {num_classes}, the number of "
            f"outputs. Received: {labels.max()}"
        )
    if arguments.positive_int("k", k) > num_classes:
        raise ValueError(
            f"Invalid value received for argument `k`. Expected at most {num_classes}, the number of classes. "
            f"Received: {k}"
        )
    own = np.take_along_axis(predictions, labels[:, None], axis=1)
    before = (predictions > own) | ((predictions == own) & (np.arange(num_classes) < labels[:, None]))
    return float(np.mean(before.sum(axis=1) < k))
