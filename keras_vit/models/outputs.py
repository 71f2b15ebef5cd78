"""Computes a model's outputs for all images of a dataset."""

import logging

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.models.inputs import check_values, num_batches, takes

logger = logging.getLogger("keras_vit")


def finite_batches(data, expected, name="data"):
    """Returns the batches of a dataset and their number, None if unknown; raises if it does not end, or is none."""
    if not hasattr(data, "__iter__") and not isinstance(data, keras.utils.PyDataset):
        raise arguments.invalid(name, expected, type(data).__name__)
    count = num_batches(data)
    if count == np.inf:
        raise arguments.invalid(name, "a dataset that ends", "one that repeats")
    return (map(data.__getitem__, range(count)) if isinstance(data, keras.utils.PyDataset) else data), count


def outputs_of(model, batches, steps=None, verbose=0, name="data"):
    """Returns a model's output for all images, float32 (num_images, ...); each batch is a NumPy array of images.

    It runs in inference mode. `steps` is the number of batches, for the progress bar that `verbose=1` shows.
    """
    outputs, full, seen = [], 0, 0
    progress = keras.utils.Progbar(steps, unit_name="batch", verbose=arguments.one_of("verbose", verbose, (0, 1)))
    for images in batches:
        count = len(images)
        _check_size(model, images, name)
        if not count:
            continue
        if not outputs and (strange := check_values(model, images)):
            logger.warning("%s", strange)
        # A single batch size compiles only once.
        full = max(full, count)
        padded = np.concatenate([images, np.repeat(images[:1], full - count, axis=0)])
        output = model.predict_on_batch(padded)
        if not hasattr(output, "shape"):
            raise ValueError(f"Expected a model with one output. Received: model {model.name!r} with {len(output)}")
        output = np.asarray(output)[:count].astype("float32")
        if not np.isfinite(output).all():
            raise ValueError(
                f"Expected a model whose outputs are finite. Received: NaN or infinity from model {model.name!r} for "
                f"an image among {seen} to {seen + count - 1}"
            )
        outputs.append(output)
        seen += count
        progress.add(1)
    if not outputs:
        raise arguments.invalid(name, "at least one image", "none")
    return np.concatenate(outputs)


def _check_size(model, images, name):
    """Raises the same error on every backend if images do not have the model's input shape."""
    inputs = getattr(model, "inputs", None) or ()
    expected = tuple(inputs[0].shape[1:]) if len(inputs) == 1 else images.shape[1:]
    if not takes(expected, images.shape[1:]):
        described = f"images of shape {expected} for model {model.name!r}, where None is any number"
        raise arguments.invalid(name, described, images.shape[1:])
