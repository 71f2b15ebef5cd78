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


def class_order(names, onto, owner):
    """Returns the indices of the data's class `names` in `onto`, the names of `owner`; None if nothing changes."""
    if names is None or onto is None or list(names) == list(onto):
        return None
    names, onto = list(names), list(onto)
    if unknown := [name for name in names if onto.count(name) != 1]:
        raise invalid("data", f"class names that {owner} has once: {onto!s:.300}", f"{unknown!s:.300}")
    return np.array([onto.index(name) for name in names])


def in_order(labels, order):
    """Maps labels by the indices that `class_order` returns."""
    if order is None:
        return labels
    if labels.max() >= len(order):
        raise invalid("labels", f"classes below {len(order)}, the number of class names of the data", labels.max())
    return order[labels]
