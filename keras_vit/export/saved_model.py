import dataclasses
import importlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.export import parity
from keras_vit.export.child import run_in_child
from keras_vit.export.labels import read_labels
from keras_vit.export.parity import ExportReport
from keras_vit.files import draft_folder, put_folder
from keras_vit.layers import ImageNormalization
from keras_vit.models.graph import operations_before
from keras_vit.models.predictions import activation_of, names_of
from keras_vit.models.preprocessing import normalization_of
from keras_vit.models.value_range import KEEP_SCALE

POSTPROCESS = (None, "classify", "multi_label")
# What serving_bytes resizes to where the model says nothing.
DEFAULT_SIZE = 224


def saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    postprocess: str | None = None,
    labels: Sequence[str] | str | os.PathLike | None = None,
    top: int = 5,
    overwrite: bool = False,
    warm_up: Sequence[int] = (1,),
    image_size: int | tuple[int, int] | None = None,
    normalization: ImageNormalization | None = None,
    images: np.ndarray | None = None,
    custom_module: str | os.PathLike | None = None,
    max_batch_size: int = 128,
    max_pixels: int = 25_000_000,
    max_input_pixels: int = 1024 * 1024,
) -> ExportReport:
    """Writes a model as a SavedModel that TensorFlow Serving answers requests with.

    It has three signatures, the same from every backend, in which only the batch size (and in a model of any size the
    images' size) is free:

    - `serving_default`: `images`, float32 (batch, height, width, channels), exactly what the model takes;
    - `serving_uint8`: `images`, uint8 of that shape, raw pixels of 0..255, which are scaled as the model's
      `normalization` layer says;
    - `serving_bytes`: `image_bytes`, strings (batch,), the contents of JPEG or PNG files, which are decoded, resized,
      cropped and scaled as that layer says. A model of other than 1 or 3 channels has no such signature.

    All answer `outputs`, the model's output as float32, or several by the names of a dict or of the layers they come
    from. `serving_bytes` adds `status`, a string for each row: "ok", "unknown_format" (neither JPEG nor PNG),
    "too_large" (above `max_pixels`, or a side above 16,384) or "damaged". A row that is not "ok" has zeros for numbers,
    "" for labels and -1 for classes, and the rows beside it are answered as if it were not there.

    With `postprocess` they add `probabilities`, (batch, classes), and, most probable first, `classes` (int32),
    `scores` and `labels`, each (batch, top). The labels are a text file in the SavedModel's `assets`.

    A request of another rank, shape or type, of no or too many images, or with numbers that are NaN, infinite or
    overflow in the model is answered by an error. Neither Keras nor this package is needed to load it.

    The folder appears whole or not at all. The SavedModel is loaded and asked once, beside the model, before that.

    Args:
        model: A model with one input of images, (batch, height, width, channels). On JAX and PyTorch it is saved to a
            temporary file and exported in a process of its own on TensorFlow.
        path: The folder to write, whose last part is the version, a number: "models/vit/1". A server takes no others.
        postprocess: None, "classify" (softmax) or "multi_label" (sigmoid: any number of classes an image). A model that
            ends with a softmax or sigmoid keeps its own.
        labels: Names of the classes in order, or the path of a text file of one a line. None takes those that the model
            carries (`class_names`), else ImageNet's for 1000 classes, and numbers otherwise.
        top: How many classes to name; all, where there are fewer.
        overwrite: Bool, whether to replace what is at `path`.
        warm_up: Batch sizes of the requests that the server answers itself when it loads the model, one a signature;
            none above `max_batch_size`; () for none.
        image_size: Int or (height, width) that `serving_bytes` resizes images to, in a model of any size; 224 x 224 by
            default. At most `max_input_pixels` in all.
        normalization: Constants to scale images with, where the model has no `normalization` layer, or other layers
            change the images before it.
        images: Images as the model takes them, to compare the answers on besides random ones; None for none.
        custom_module: Name of an importable module, or path of a Python file, that defines the model's own layers.
            Needed where a process of its own cannot find them: those of imported modules and those of the running
            script or notebook are found without.
        max_batch_size: Images that a request may hold.
        max_pixels: height x width of an image in `serving_bytes`, which is read from its header before it is decoded.
        max_input_pixels: height x width of the images in the others, in a model of any size.

    Returns:
        An `ExportReport`; printed, it says the size and the difference.

    Raises:
        FileExistsError: If there is something at `path` and `overwrite` is False.
        ValueError: If `path` does not end in a number, an argument is out of range, the model has other inputs or, with
            `postprocess`, other outputs, or its own layers can be defined in no other process.
        ParityError: If the SavedModel answers otherwise than the model.
        RuntimeError: If the process that exports it fails.

    Example:

    >>> print(keras_vit.export.saved_model(model, "models/vit/1", postprocess="classify"))  # doctest: +SKIP
    Wrote models/vit/1 (float32, 347.8 MB): at most 5.7e-06 from the model on 2 images.

    Reference: [TensorFlow Serving](https://www.tensorflow.org/tfx/guide/serving).
    """
    path = Path(path)
    if not (path.name.isascii() and path.name.isdigit()):
        raise ValueError(
            "Invalid value received for argument `path`. Expected a folder named by a number, the version, as "
            f"{str(path.parent / '1')!r}. Received: {str(path)!r}"
        )
    height, width, channels = _input_of(model)
    if postprocess not in POSTPROCESS:
        raise ValueError(f"Expected `postprocess` to be one of {POSTPROCESS}. Received: {postprocess!r}")
    limits = {"max_batch_size": max_batch_size, "max_pixels": max_pixels, "max_input_pixels": max_input_pixels}
    for name, value in (("top", top), *limits.items(), *(("warm_up", size) for size in warm_up)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"Expected `{name}` to be a positive integer. Received: {value!r}")
    if max(warm_up, default=0) > max_batch_size:
        raise ValueError(
            f"Expected `warm_up` of at most max_batch_size={max_batch_size} images. Received: {tuple(warm_up)}"
        )
    if image_size is not None:
        if None not in (height, width):
            raise ValueError(
                f"Expected image_size=None with a model for {height} x {width} pixels. Received: {image_size}"
            )
        image_size = arguments.pair("image_size", image_size)
    if postprocess is None and labels is not None:
        raise ValueError('Expected postprocess="classify" or "multi_label" with `labels`. Received: postprocess=None')
    image_size = image_size or (height or DEFAULT_SIZE, width or DEFAULT_SIZE)
    if None in (height, width) and image_size[0] * image_size[1] > max_input_pixels:
        raise ValueError(
            f"Expected `image_size` of at most max_input_pixels={max_input_pixels} in all. Received: "
            f"{image_size[0]} x {image_size[1]} = {image_size[0] * image_size[1]} pixels"
        )
    settings = {
        "limits": limits,
        "image_size": list(image_size),
        "warm_up": list(warm_up),
        "normalization": _constants_of(model, normalization),
        "postprocess": None,
    }
    if postprocess is not None:
        activation, classes = activation_of(model, postprocess), model.outputs[0].shape[-1]
        names = read_labels(names_of(model) if labels is None else labels, classes)
        settings["postprocess"] = {"activation": activation, "labels": names, "top": min(top, classes)}
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"Expected a path where there is nothing. Received: {str(path)!r}, which exists. Take the next version's "
            "number, or pass overwrite=True."
        )

    low, high = (0, 255) if settings["normalization"]["apply"] else parity.value_range(model)
    sample = np.random.default_rng(0).uniform(low, high, (2, *image_size, channels)).astype("float32")
    images = sample if images is None else np.concatenate([sample, _as_sample(images, sample)])
    # One image at a time where a request takes no more.
    settings["step"] = min(max_batch_size, parity.BATCH)
    answers = _answers(model, images, settings["step"])
    settings["names"] = list(answers)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The server takes only numbers for versions, so it does not see the draft.
    with draft_folder(path) as folder:
        draft, sample = folder / path.name, folder / f"{path.name}.sample.npz"
        np.savez(sample, images, *answers.values())
        task = {"folder": str(draft), "settings": settings, "sample": str(sample)}
        if keras.backend.backend() == "tensorflow":
            difference = write(model, **task)
        else:
            difference = run_in_child(write, model, backend="tensorflow", custom_module=custom_module, **task)
        _check(difference, answers, model)
        size = sum(file.stat().st_size for file in draft.rglob("*") if file.is_file())
        put_folder(draft, path)
    return ExportReport(path, "float32", size, difference, len(images), None)


def write(model, folder, settings, sample):
    """Writes a SavedModel on the TensorFlow backend.

    Args:
        model: The model.
        folder: Path of a folder that does not exist.
        settings: Dict, as `saved_model` makes it.
        sample: Path of an .npz file of images and the model's answers.

    Returns:
        The largest absolute difference between an answer of the model's and the SavedModel's.
    """
    import tensorflow as tf

    # These import TensorFlow, which a process of another backend should not.
    signatures = importlib.import_module("keras_vit.export.signatures")
    warm_up = importlib.import_module("keras_vit.export.warm_up")
    with tempfile.TemporaryDirectory(prefix="keras_vit_") as assets:
        postprocess = settings["postprocess"]
        if postprocess is not None:
            classify = importlib.import_module("keras_vit.export.postprocess").Classify
            file = Path(assets, "labels.txt")
            file.write_text("".join(f"{name}\n" for name in postprocess["labels"]), encoding="utf-8")
            postprocess = classify(postprocess["activation"], postprocess["labels"], file, postprocess["top"])
        server = signatures.Server(
            model,
            settings["names"],
            ImageNormalization(**settings["normalization"]),
            tuple(settings["image_size"]),
            signatures.Limits(**settings["limits"]),
            postprocess,
        )
        try:
            tf.saved_model.save(server, folder, signatures=server.signatures())
        except tf.errors.OpError as error:
            # TensorFlow's own kind, also for a full disk; the path that it names is the draft's.
            draft, reason = Path(folder), error.message.rpartition("; ")[2]
            raise OSError(f"Cannot write {str(draft.parent.parent / draft.name)!r}: {reason}") from error
    loaded = tf.saved_model.load(folder)
    if settings["warm_up"]:
        warm_up.write(folder, _requests(loaded.signatures, settings))
    images, *expected = np.load(sample).values()
    step, differences = settings["step"], []
    for start in range(0, len(images), step):
        answers = loaded.signatures["serving_default"](images=tf.constant(images[start : start + step]))
        for name, theirs in zip(settings["names"], expected, strict=True):
            differences.append(float(np.abs(answers[name].numpy() - theirs[start : start + step]).max()))
    # NumPy's, unlike Python's, gives NaN where one is.
    return float(np.max(differences))


def _requests(functions, settings):
    """One small request a signature and batch size."""
    import tensorflow as tf

    for count in settings["warm_up"]:
        for name, function in functions.items():
            ((key, spec),) = function.structured_input_signature[1].items()
            if spec.dtype == tf.string:
                grey = tf.fill((*settings["image_size"], 3), tf.constant(127, "uint8"))
                yield name, {key: np.array([tf.io.encode_jpeg(grey).numpy()] * count, object)}
            else:
                yield name, {key: np.zeros((count, *settings["image_size"], spec.shape[-1]), spec.dtype.as_numpy_dtype)}


def _input_of(model):
    """The (height, width, channels) of the images that a model takes."""
    inputs = getattr(model, "inputs", None)
    shapes = [tuple(tensor.shape) for tensor in inputs] if inputs else "no model, or one that was never called"
    if not inputs or len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][0] is not None or shapes[0][-1] is None:
        raise ValueError(
            "Expected a model with one input of shape (None, height, width, channels), built or called once. "
            f"Received: {shapes}"
        )
    return shapes[0][1:]


def _as_sample(images, sample):
    """The caller's images as an array beside which the random ones fit."""
    images = np.asarray(images, "float32")
    if images.ndim != 4 or images.shape[1:] != sample.shape[1:]:
        raise ValueError(
            f"Expected `images` of shape (batch, {', '.join(map(str, sample.shape[1:]))}). Received: {images.shape}"
        )
    return images


def _constants_of(model, normalization):
    """The constants that images are scaled with."""
    if normalization is None:
        advice = "Say how images are scaled: normalization=keras_vit.layers.ImageNormalization(mean, std)"
        try:
            normalization = normalization_of(model)
        except ValueError as error:
            raise ValueError(f"{error} {advice}.") from error
        before = operations_before(model, normalization)
        if before is None:
            raise ValueError(
                "Expected a model whose images go straight to its `normalization` layer. Received: model "
                f"{model.name!r}, which has it in a model of a class of its own. {advice}."
            )
        if changing := [operation.name for operation in before if not isinstance(operation, KEEP_SCALE)]:
            raise ValueError(
                "Expected a model whose images go straight to its `normalization` layer. Received: model "
                f"{model.name!r} with {', '.join(reversed(changing))} before it. {advice}, with apply=True where the "
                "model takes them raw."
            )
    return {"apply": normalization.apply, **dataclasses.asdict(normalization.preprocessing)}


def _answers(model, images, step):
    """A model's answers as float32 arrays, by the names of its outputs."""
    parts = []
    for start in range(0, len(images), step):
        outputs = model(keras.ops.convert_to_tensor(images[start : start + step]), training=False)
        flat = keras.tree.flatten(outputs)
        parts.append([keras.ops.convert_to_numpy(keras.ops.cast(output, "float32")) for output in flat])
    # The keys of a dict come in the order of `flatten`.
    keyed = isinstance(outputs, dict) and len(flat) > 1
    names = [key.replace("/", "_") for key in sorted(outputs)] if keyed else parity.output_names(model)
    if "status" in names:
        raise ValueError(f'Expected outputs of other names than "status". Received: {names}')
    arrays = [np.concatenate(part) for part in zip(*parts, strict=True)]
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError(f"Expected a model that gives numbers. Received: model {model.name!r}, which gives NaN.")
    return dict(zip(names, arrays, strict=True))


def _check(difference, answers, model):
    """Raises if a SavedModel's answers are not the model's."""
    allowed = parity.default_tolerance(model) * max(1.0, *(float(np.abs(answer).max()) for answer in answers.values()))
    if not difference <= allowed:
        raise parity.ParityError(
            f"Expected the SavedModel to answer as model {model.name!r} does, to {allowed:.1e}. Received: outputs "
            f"{difference:.3g} apart. Nothing was written."
        )
