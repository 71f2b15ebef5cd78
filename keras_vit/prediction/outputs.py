"""Computes a model's outputs for all images of a dataset."""

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.console import Progress
from keras_vit.models.running import check_size
from keras_vit.prediction.inputs import check_images, check_no_files, num_batches, refuse_trainer, sliced, to_numpy

# The kinds of test-time augmentation: none; the image and its mirror image; crops of the four corners and the center of
# a larger image (arXiv 1409.4842, section 7); these five crops and their mirror images.
TTA = (None, "flip", "five_crop", "ten_crop")


def check_one_input(model):
    """Raises ValueError if a model has other inputs in addition to images, or only trains another model."""
    refuse_trainer(model)
    if len(getattr(arguments.model(model), "inputs", None) or [model]) > 1:
        received = f"model {model.name!r} with {len(model.inputs)} inputs"
        advice = "Pass its outputs, model.predict(...), to keras_vit.evaluation.top_k_accuracy."
        raise ValueError(f"Expected a model with one input, images. Received: {received}. {advice}")


def finite_batches(data, expected, name="data"):
    """Returns (batches, number of batches or None); raises ValueError if data is endless or not iterable."""
    check_no_files(data, name)
    if not hasattr(data, "__iter__") and not isinstance(data, keras.utils.PyDataset):
        raise arguments.invalid(name, expected, type(data).__name__)
    count = num_batches(data)
    if count == np.inf:
        raise arguments.invalid(name, "a dataset that ends", "one that repeats")
    return (map(data.__getitem__, range(count)) if isinstance(data, keras.utils.PyDataset) else data), count


def image_batches(data, batch_size, name="data"):
    """Returns (batches of images, number of batches or None); `data` is an array, or batches that may have labels."""
    if hasattr(data, "shape"):
        size, data = arguments.positive_int("batch_size", batch_size), to_numpy(data)
        return (batch for (batch,) in sliced((data,), size)), -(-len(data) // size)
    expected = "images as an array, or batches of them: a tf.data.Dataset, a PyDataset or another iterable"
    batches, steps = finite_batches(data, expected, name)

    def images(batch):
        if isinstance(batch, dict):
            received = f"a dict with the keys {sorted(batch)}"
            raise arguments.invalid(name, "batches of images", received, advice="Make tuples (images, labels)")
        return to_numpy(batch[0] if isinstance(batch, (tuple, list)) else batch)

    return map(images, batches), steps


def check_all_read(data, count, name="data"):
    """Raises ValueError if a dataset skipped broken images, so that its `count` predictions would get wrong names."""
    broken = list(getattr(data, "broken", ()))
    if (expected := getattr(data, "num_images", count)) != count or broken:
        wanted = f"`{name}` to be a dataset whose {expected} images can all be read"
        raise ValueError(f"Expected {wanted}. Received: {count} images; broken: {broken}")


def predict_batches(model, batches, steps=None, verbose=0, name="data"):
    """Returns a model's output for all NumPy batches, float32 (num_images, ...). `steps` is for the progress bar."""
    return np.concatenate([output for (output,) in outputs_of_views(model, batches, steps, verbose, name)])


def outputs_of_views(model, batches, steps=None, verbose=0, name="data", tta=None):
    """Does the same as `predict_batches`, but yields a list for each batch: the outputs for each view of `tta`."""
    full, seen = 0, 0
    progress = Progress(steps, "batch", "images", verbose=verbose)
    for images in progress.over(batches, count=len):
        count = len(images)
        views = tta_views(model, images, tta, name)
        if not count:
            continue
        if not seen:
            check_images(model, views[0], name)
        # Use a single batch size, so that the model is compiled only once.
        full = max(full, count)
        where = f"an image among {seen} to {seen + count - 1}"
        yield [padded_output(model, view, full, where) for view in views]
        seen += count
    if not seen:
        raise arguments.invalid(name, "at least one image", "none")


def padded_output(model, images, full, where):
    """Returns the output for a batch, padded to `full` images. If it is not finite, the error contains `where`."""
    padded = np.concatenate([images, np.repeat(images[:1], full - len(images), axis=0)])
    output = model.predict_on_batch(padded)
    if not hasattr(output, "shape"):
        raise ValueError(f"Expected a model with one output. Received: model {model.name!r} with {len(output)} outputs")
    output = np.asarray(output)[: len(images)].astype("float32")
    if not np.isfinite(output).all():
        received = f"NaN or infinity from model {model.name!r} for {where}"
        raise ValueError(f"Expected a model whose outputs are finite. Received: {received}")
    return output


def tta_views(model, images, tta=None, name="data"):
    """Returns a list of the views of `images` that `tta` selects (see `TTA`). `images` and each view are a batch."""
    if arguments.choice("tta", tta, TTA) in ("five_crop", "ten_crop"):
        views = _five_crops(model, images, tta, name)
    else:
        check_size(model, images, name)
        views = [images]
    return views + [view[:, :, ::-1] for view in views] if tta in ("flip", "ten_crop") else views


def _five_crops(model, images, tta, name):
    """Returns the corners and the center of images, in the size that the model takes."""
    expected = tuple(model.inputs[0].shape[1:])
    if images.ndim != 4 or None in expected[:2]:
        described = f"None or 'flip' for model {model.name!r}, which takes images of any size"
        raise arguments.invalid("tta", described, tta)
    height, width = expected[:2]
    below, right = images.shape[1] - height, images.shape[2] - width
    if min(below, right) < 0 or below + right == 0 or not arguments.takes(expected[2:], images.shape[3:]):
        described = f"images larger than {expected}, to crop them to that size for model {model.name!r}"
        raise arguments.invalid(name, described, images.shape[1:])
    corners = [(0, 0), (0, right), (below, 0), (below, right), (below // 2, right // 2)]
    return [images[:, y : y + height, x : x + width] for y, x in corners]
