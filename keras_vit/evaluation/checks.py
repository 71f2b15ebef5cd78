"""Checks of features, labels and options."""

import numpy as np

from keras_vit.prediction.inputs import to_numpy


def invalid(name, expected, received):
    """Returns the ValueError for an argument."""
    return ValueError(f"Invalid value received for argument `{name}`. Expected {expected}. Received: {received}")


def one_or_more(name, values, check):
    """Returns one value or several as a list, each checked by a function of `keras_vit.arguments`."""
    checked = [check(name, value) for value in (values if np.ndim(values) else [values])]
    if not checked:
        raise invalid(name, "at least one", "none")
    return checked


def integer_labels(labels):
    """Converts integer or one-hot labels to an int64 array (num_images,)."""
    labels = to_numpy(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2:
        if not (np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all()):
            received = f"rows of {labels.shape[1]} numbers, some of them mixed, smoothed or of several classes"
            raise invalid("labels", "integers, or rows with a single 1", received)
        return labels.argmax(axis=1).astype("int64")
    if labels.ndim != 1 or not (np.issubdtype(labels.dtype, np.number) or labels.dtype == bool):
        received = f"{labels.dtype} of shape {labels.shape}, as {labels.flat[:1].tolist()}"
        raise invalid("labels", "integers, or one-hot rows", received)
    whole = labels.astype("int64")
    wrong = (whole != labels) | (whole < 0)
    if wrong.any():
        raise invalid("labels", "classes counted from 0", repr(labels[wrong][0]))
    return whole


def checked_features(name, features):
    """Converts features to a finite float array (num_images, num_features)."""
    features = to_numpy(features)
    if features.dtype != np.float64:
        features = features.astype("float32")
    if features.ndim != 2 or not len(features) or not np.isfinite(features).all():
        expected = "finite numbers, (num_images, num_features), of at least one image"
        raise invalid(name, expected, f"shape {features.shape}")
    return features


def checked_parts(train_features, train_labels, test_features, test_labels):
    """Checks training and test features and labels, and that they fit each other."""
    parts = []
    for part, features, labels in (("train", train_features, train_labels), ("test", test_features, test_labels)):
        features, labels = checked_features(f"{part}_features", features), integer_labels(labels)
        if len(features) != len(labels):
            expected = f"one label for each row of `{part}_features`, {len(features)}"
            raise invalid(f"{part}_labels", expected, len(labels))
        parts += [features, labels]
    widths = parts[0].shape[1], parts[2].shape[1]
    if widths[0] != widths[1]:
        raise invalid("test_features", f"{widths[0]} features for each image, as in `train_features`", widths[1])
    return parts
