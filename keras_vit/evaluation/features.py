"""Computes a model's features or predictions for all images of a dataset, with their labels."""

from typing import Any

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.models.backbone import head_inputs, head_within
from keras_vit.models.family import cut_from
from keras_vit.prediction.classes import fitting_class_names
from keras_vit.prediction.inputs import is_arrays, real_array, sliced, to_numpy
from keras_vit.prediction.outputs import check_one_input, finite_batches, predict_batches


def invalid(name, expected, received):
    """Returns a ValueError for the argument `name`."""
    return ValueError(f"Invalid value received for argument `{name}`. Expected {expected}. Received: {received}")


def one_or_more(name, values, check):
    """Returns one value or several values as a list. `check(name, value)` checks each value."""
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
            received = f"rows of {labels.shape[1]} numbers that are not one-hot, for example after mixup"
            raise invalid("labels", "integers, or rows with a single 1", received)
        return labels.argmax(axis=1).astype("int64")
    if labels.ndim != 1 or not (np.issubdtype(labels.dtype, np.number) or labels.dtype == bool):
        received = f"{labels.dtype} of shape {labels.shape}, such as {labels.flat[:1].tolist()}"
        raise invalid("labels", "integers, or one-hot rows", received)
    whole = labels.astype("int64")
    wrong = (whole != labels) | (whole < 0)
    if wrong.any():
        raise invalid("labels", "classes counted from 0", repr(labels[wrong][0]))
    return whole


def checked_features(name, features):
    """Converts features to a finite float array (num_images, num_features)."""
    features = real_array(name, features, finite=False)
    if features.dtype != np.float64:
        features = features.astype("float32")
    if features.ndim != 2 or not len(features) or not np.isfinite(features).all():
        expected = "finite numbers, (num_images, num_features), of at least one image"
        raise invalid(name, expected, f"shape {features.shape}")
    return features


def class_order(names, onto, owner):
    """Returns the index in `onto`, `owner`'s classes, of each of `names`; returns None if labels need no change."""
    # If the two lists are equal, or one of them is unknown or only numbers, the labels are class indices of `owner`.
    if not arguments.names_differ(names, onto):
        return None
    names, onto = list(names), list(onto)
    if unknown := [name for name in names if onto.count(name) != 1]:
        raise invalid("data", f"class names that occur once in {owner}: {onto!s:.300}", f"{unknown!s:.300}")
    return np.array([onto.index(name) for name in names])


def in_order(labels, order):
    """Replaces each of the data's labels by `order[label]`. `order` is the result of `class_order`."""
    if order is None:
        return labels
    if labels.max() >= len(order):
        raise invalid("labels", f"classes below {len(order)}, the number of class names of the data", labels.max())
    return order[labels]


def extract_features(
    model: keras.Model, data: Any, *, layer: str | None = None, batch_size: int = 32, verbose: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a model's features, float32 (num_images, num_features), and a dataset's labels, int64 (num_images,).

    The model need not be compiled and is not changed. The features of an image do not depend on other images in a
    batch.

    Args:
        model: A `keras.Model` with one input. If it is or contains a model of this package, the features are the input
            of the head, like the output of a model with `num_classes=0`. If not, the features are the model's output.
        data: (images, labels) as arrays, or batches of (images, labels): a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, a `torch.utils.data.DataLoader` or another finite iterable. Labels are integers or
            one-hot; images are in the model's value range.
        layer: String, the name of the layer whose output (batch, num_features) is the features. None selects the
            features as described for `model`.
        batch_size: Int, images per batch if `data` is arrays.
        verbose: 0 or 1; 1 shows a progress bar if the computation takes more than five seconds.

    Raises:
        ValueError: If `data` is empty, endless or does not consist of valid (images, labels), the features are not one
            finite vector per image, or the head has several inputs or belongs to a nested model.

    Example:
    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> images, labels = np.zeros((5, 32, 32, 3)), np.array([0, 1, 2, 0, 1])
    >>> features, labels = extract_features(model, (images, labels), batch_size=2, verbose=0)
    >>> features.shape, labels.shape
    ((5, 192), (5,))
    """
    features, labels = outputs_and_labels(_feature_model(model, layer), data, batch_size, verbose)
    if features.ndim != 2:
        received = f"an output of shape {features.shape} of model {model.name!r}, layer={layer!r}"
        raise ValueError(f"Expected a model or `layer` with one vector per image as output. Received: {received}")
    return features, labels


def train_and_test(model, train, test, layer=None, batch_size=32, verbose=1):
    """Returns the features and labels of `train`, then of `test`. If `model` is None, both are (features, labels)."""
    if model is None and layer is not None:
        raise invalid("layer", "None, since `model` is None", repr(layer))
    names = (getattr(data, "class_names", None) for data in (test, train))
    parts, order = [], class_order(*names, "the training data")
    for part, data in (("train", train), ("test", test)):
        if model is not None:
            features, labels = extract_features(model, data, layer=layer, batch_size=batch_size, verbose=verbose)
        elif is_arrays(data, or_lists=True):
            features, labels = checked_features(part, data[0]), integer_labels(data[1])
        else:
            raise invalid(part, "(features, labels) as arrays, since `model` is None", type(data).__name__)
        if len(features) != len(labels):
            raise invalid(part, f"one label for each of {len(features)} rows of features", len(labels))
        parts += [features, labels]
    widths = parts[0].shape[1], parts[2].shape[1]
    if widths[0] != widths[1]:
        raise invalid("test", f"{widths[0]} features for each image, as in `train`", widths[1])
    return [*parts[:3], in_order(parts[3], order)]


def outputs_and_labels(model, data, batch_size, verbose, read_labels=integer_labels):
    """Returns a model's float32 outputs for all images, and the labels. `read_labels` converts each batch of labels."""
    labels = []
    check_one_input(model)
    batches, steps = _batches(data, batch_size)

    def images_alone():
        for batch in batches:
            if not isinstance(batch, (tuple, list)):
                raise invalid("data", "batches of (images, labels)", f"{type(batch).__name__} batches without labels")
            if len(batch) != 2:
                advice = "Make the data without sample weights and `pad_remainder`"
                raise invalid("data", "batches of (images, labels)", f"batches of {len(batch)} elements. {advice}")
            images, batch_labels = to_numpy(batch[0]), read_labels(batch[1])
            _check_counts(images, batch_labels)
            labels.append(batch_labels)
            yield images

    return predict_batches(model, images_alone(), steps, verbose), np.concatenate(labels)


def outputs_and_classes(model, data, batch_size, verbose):
    """Does the same as `outputs_and_labels`, with the labels as class indices of the model."""
    order = class_order(getattr(data, "class_names", None), fitting_class_names(model), "the model")
    outputs, labels = outputs_and_labels(model, data, batch_size, verbose)
    return outputs, in_order(labels, order)


def _feature_model(model, layer):
    is_graph = isinstance(model, (keras.Function, keras.Sequential))
    if layer is not None:
        arguments.choice("layer", layer, [own.name for own in model.layers] if is_graph else [])
        outputs = [model.get_layer(layer).output]
    else:
        outputs = head_inputs(model) if is_graph else []
    if not outputs:
        if is_graph and head_within(model):
            received = f"model {model.name!r}. Pass the nested model, model.get_layer(...)."
            raise ValueError(f"Expected a model whose head is not in a nested model. Received: {received}")
        return model
    # A model with a class token and a distillation token returns the mean of the two tokens if it has no head.
    distilled = len(outputs) == 2 and "pooling_dist" in {own.name for own in model.layers}
    if len(outputs) > 1 and not distilled:
        received = f"model {model.name!r}, whose head reads {len(outputs)} tensors. Pass `layer`, the name of a layer."
        raise ValueError(f"Expected a model whose head reads one tensor. Received: {received}")
    x = keras.layers.Average(dtype=outputs[0].dtype)(outputs) if distilled else outputs[0]
    return cut_from(model, model.inputs[0] if len(model.inputs) == 1 else model.inputs, x, name=model.name)


def _check_counts(images, labels):
    if len(images) != len(labels):
        raise invalid("data", "as many labels as images", f"{len(images)} images and {len(labels)} labels")


def _batches(data, batch_size):
    """Returns (an iterable of batches, the number of batches). The number is None if it is unknown."""
    if is_arrays(data, or_lists=True):
        size = arguments.positive_int("batch_size", batch_size)
        images, labels = map(to_numpy, data)
        _check_counts(images, labels)
        return sliced((images, labels), size), -(-len(images) // size)
    if isinstance(data, tuple) and is_arrays(data, (1, 3), or_lists=True):
        raise invalid("data", "two arrays, (images, labels)", f"a tuple of {len(data)} arrays")
    return finite_batches(data, "(images, labels) as arrays, a tf.data.Dataset, a PyDataset or an iterable of batches")
