"""What a model says of each image of a dataset: the features below its head, or its predictions, with the labels."""

import logging

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.models.backbone import head_inputs, head_within
from keras_vit.models.inputs import check_values, is_arrays, num_batches, sliced, takes, to_numpy

logger = logging.getLogger("keras_vit")


def extract_features(model, data, *, layer=None, batch_size=32, verbose=1):
    """Computes a model's features of all images of a dataset.

    The model need not be compiled, and stays as it is. Each image's features depend on that image alone: a last batch
    with fewer images is filled up for the model and cut again.

    Args:
        model: A `keras.Model` with one input. Of this package's models the features are what the head gets, as
            `num_classes=0` would return them, also where head and model are yours and the backbone is one layer of
            it; of others, their output.
        data: (images, labels) as arrays; or what gives batches of (images, labels): a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, a `torch.utils.data.DataLoader` or another iterable that ends. Labels are integers,
            or one-hot. Images are as the model takes them.
        layer: String, the name of the layer whose output is taken instead, of shape (batch, features).
        batch_size: Int, the images of a batch where `data` is arrays.
        verbose: 0 or 1; 1 shows a progress bar.

    Returns:
        Features, a float32 array (num_images, num_features), and labels, an int64 array (num_images,).

    Raises:
        ValueError: If `data` is empty, endless or no batches of (images, labels); if labels are neither integers nor
            one-hot; if the images of the first batch have other values than the model takes; if the model gives no
            vector, or one that is not finite, for an image; or if its head gets several, or stands on a model within.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> images, labels = np.zeros((5, 32, 32, 3)), np.array([0, 1, 2, 0, 1])
    >>> features, labels = extract_features(model, (images, labels), batch_size=2, verbose=0)
    >>> features.shape, labels.shape
    ((5, 192), (5,))
    """
    features, labels = outputs_and_labels(_feature_model(model, layer), data, batch_size, verbose)
    if features.ndim != 2:
        raise ValueError(
            "Expected a model that gives one vector an image, or the name of such a layer in `layer`. "
            f"Received: model {model.name!r}, layer={layer!r}, which gives shape (batch, "
            f"{', '.join(map(str, features.shape[1:]))})"
        )
    return features, labels


def outputs_and_labels(model, data, batch_size, verbose, read_labels=None):
    """The output of a model for each image of a dataset, float32, and the labels, int64, as in `extract_features`.

    What `read_labels` makes of each batch's labels, (batch, ...), stands for `integer_labels`.
    """
    read_labels = read_labels or integer_labels
    outputs, labels, full = [], [], 0
    steps = _num_batches(data, batch_size)
    progress = keras.utils.Progbar(steps, unit_name="batch", verbose=arguments.one_of("verbose", verbose, (0, 1)))
    for batch in _batches(data, batch_size):
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ValueError(
                f"Invalid value received for argument `data`. Expected batches of (images, labels). Received: {batch!r}"
                if not isinstance(batch, (tuple, list))
                else "Invalid value received for argument `data`. Expected batches of (images, labels). Received: "
                f"batches of {len(batch)} parts"
            )
        images, batch_labels = to_numpy(batch[0]), read_labels(batch[1])
        count = len(images)
        _check_size(model, images)
        if count != len(batch_labels):
            raise ValueError(
                "Invalid value received for argument `data`. Expected as many labels as images. "
                f"Received: {count} images and {len(batch_labels)} labels"
            )
        if not count:
            continue
        if not outputs and (strange := check_values(model, images)):
            logger.warning("%s", strange)
        # One size of batch is one compilation.
        full = max(full, count)
        padded = np.concatenate([images, np.repeat(images[:1], full - count, axis=0)]) if count < full else images
        output = model.predict_on_batch(padded)
        if not hasattr(output, "shape"):
            raise ValueError(f"Expected a model with one output. Received: model {model.name!r} with {len(output)}")
        output = np.asarray(output)[:count].astype("float32")
        if not np.isfinite(output).all():
            raise ValueError(
                f"Expected a model whose outputs are finite. Received: NaN or infinity from model {model.name!r} for "
                f"an image among those from {sum(map(len, labels))} to {sum(map(len, labels)) + count - 1}"
            )
        outputs.append(output)
        labels.append(batch_labels)
        progress.add(1)
    if not outputs:
        raise ValueError("Invalid value received for argument `data`. Expected at least one image. Received: none")
    return np.concatenate(outputs), np.concatenate(labels)


def integer_labels(labels):
    """Labels as an int64 array (num_images,), from integers or one-hot rows."""
    labels = to_numpy(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2:
        if not (np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all()):
            raise ValueError(
                "Invalid value received for argument `labels`. Expected integers, or rows with a single 1. Received: "
                f"rows of {labels.shape[1]} numbers of which some are mixed, smoothed or of several classes"
            )
        return labels.argmax(axis=1).astype("int64")
    if labels.ndim != 1 or not (np.issubdtype(labels.dtype, np.number) or labels.dtype == bool):
        raise ValueError(
            "Invalid value received for argument `labels`. Expected integers, or one-hot rows. "
            f"Received: {labels.dtype} of shape {labels.shape}, as {labels.flat[:1].tolist()}"
        )
    whole = labels.astype("int64")
    if (whole != labels).any() or (whole < 0).any():
        raise ValueError(
            "Invalid value received for argument `labels`. Expected classes counted from 0. "
            f"Received: {labels[(whole != labels) | (whole < 0)][0]!r}"
        )
    return whole


def checked_features(name, features):
    """Features as a finite float array (num_images, num_features)."""
    features = to_numpy(features)
    if features.dtype != np.float64:
        features = features.astype("float32")
    if features.ndim != 2 or not len(features) or not np.isfinite(features).all():
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected finite numbers, (num_images, num_features), of at "
            f"least one image. Received: shape {features.shape}"
        )
    return features


def checked_pair(part, features, labels, num_features=None):
    """The features and labels of "train" or "test", checked against each other and the other part's width."""
    features, labels = checked_features(f"{part}_features", features), integer_labels(labels)
    if len(features) != len(labels):
        raise ValueError(
            f"Invalid value received for argument `{part}_labels`. Expected one a row of `{part}_features`, "
            f"{len(features)}. Received: {len(labels)}"
        )
    if num_features not in (None, features.shape[1]):
        raise ValueError(
            f"Invalid value received for argument `{part}_features`. Expected {num_features} features an image, as in "
            f"`train_features`. Received: {features.shape[1]}"
        )
    return features, labels


def _feature_model(model, layer):
    is_graph = isinstance(model, (keras.Function, keras.Sequential))
    if layer is not None:
        arguments.one_of("layer", layer, [own.name for own in model.layers] if is_graph else [])
        outputs = [model.get_layer(layer).output]
    else:
        outputs = head_inputs(model) if is_graph else []
    if not outputs:
        if is_graph and head_within(model):
            raise ValueError(
                "Expected a model whose head stands on the model itself. Received: model "
                f"{model.name!r} with a head within a model in it: pass that one, model.get_layer(...)."
            )
        return model
    # As a distilled model without a head: the mean of its two tokens.
    distilled = len(outputs) == 2 and "pooling_dist" in {own.name for own in model.layers}
    if len(outputs) > 1 and not distilled:
        raise ValueError(
            "Expected a model whose head reads one tensor, or the name of a layer in `layer`. Received: model "
            f"{model.name!r}, whose head reads {len(outputs)}"
        )
    x = keras.layers.Average(dtype=outputs[0].dtype)(outputs) if distilled else outputs[0]
    return keras.Model(model.inputs[0] if len(model.inputs) == 1 else model.inputs, x, name=model.name)


def _check_size(model, images):
    """Raises where images have another shape than the model takes, of which each backend says something else."""
    inputs = getattr(model, "inputs", None) or ()
    expected = tuple(inputs[0].shape[1:]) if len(inputs) == 1 else images.shape[1:]
    if not takes(expected, images.shape[1:]):
        raise ValueError(
            f"Invalid value received for argument `data`. Expected images of shape {expected}, with None for any "
            f"number, as model {model.name!r} takes them. Received: {images.shape[1:]}"
        )


def _num_batches(data, batch_size):
    """How many batches there are, None where that is not known."""
    if is_arrays(data):
        return -(-len(data[0]) // arguments.positive_int("batch_size", batch_size))
    count = num_batches(data)
    if count == np.inf:
        raise ValueError(
            "Invalid value received for argument `data`. Expected a dataset that ends. Received: one that repeats"
        )
    return count


def _batches(data, batch_size):
    if is_arrays(data):
        images, labels = map(to_numpy, data)
        if len(images) != len(labels):
            raise ValueError(
                "Invalid value received for argument `data`. Expected as many labels as images. "
                f"Received: {len(images)} images and {len(labels)} labels"
            )
        return sliced((images, labels), batch_size)
    if isinstance(data, keras.utils.PyDataset):
        return (data[i] for i in range(data.num_batches))
    if not hasattr(data, "__iter__"):
        raise ValueError(
            "Invalid value received for argument `data`. Expected (images, labels) as arrays, a tf.data.Dataset, a "
            f"PyDataset or an iterable of batches. Received: {type(data).__name__}"
        )
    return iter(data)
