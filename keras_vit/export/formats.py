"""Exports to ONNX, OpenVINO, LiteRT and torch.export."""

import contextlib
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.export import parity, tensorflow_formats, torch_formats
from keras_vit.export.child import custom_objects, run_in_child
from keras_vit.export.parity import PRECISIONS, STATIC, accuracy_change, with_precision
from keras_vit.files import draft_folder, put_folder
from keras_vit.prediction.inputs import check_images, real_array


class Format(NamedTuple):
    """An export format. `code` is a module with the functions `write_<name>` and `run_<name>`.

    `write_<name>(model, path, settings)` writes a file, and only works if `backend` is Keras' backend.
    `run_<name>(path, batches, settings)` runs the file and yields a list of outputs for each batch. `settings` is a
    dict of JSON values, such as the `precision` and the `names` of the outputs. `packages` are the packages that the
    export needs. `tolerances` is {precision: default tolerance}, with the precisions that need a special default.
    """

    name: str
    suffix: str
    backend: str
    packages: tuple
    code: object
    precisions: tuple = PRECISIONS
    tolerances: dict = {}


def write_file(fmt, model, path, precision="float32", images=None, labels=None, tolerance=None, **options):
    """Exports a model to a file of the format `fmt`; the arguments are as in `onnx`."""
    path = Path(arguments.path("path", path))
    arguments.optional(arguments.positive_number, "tolerance", tolerance)
    if path.suffix != fmt.suffix:
        raise ValueError(f"Expected `path` to end in {fmt.suffix!r}. Received: {str(path)!r}")
    arguments.choice("precision", precision, fmt.precisions)
    if labels is not None and images is None:
        raise ValueError("Expected `images` together with `labels`. Received: images=None")
    if precision == STATIC and (images is None or not len(images)):
        raise ValueError(f"Expected `images` for the calibration of precision={STATIC!r}. Received: none")
    batches = parity.probes(model)
    given = [] if images is None else real_array("images", images).astype(batches[0].dtype)
    if images is not None and not arguments.takes(model.inputs[0].shape[1:], given.shape[1:]):
        raise arguments.invalid("images", f"an array of shape {tuple(model.inputs[0].shape)}", given.shape)
    if labels is not None and model.outputs[0].shape[-1] == 1:
        raise arguments.invalid(
            "labels", f"None, because model {model.name!r} has one output and no top-1 class", labels
        )
    if labels is not None:
        classes, num_classes = real_array("labels", labels), model.outputs[0].shape[-1]
        if classes.shape != given.shape[:1] or not np.isin(classes, np.arange(num_classes)).all():
            expected = f"a class for each of {len(given)} images, an integer of 0..{num_classes - 1}"
            raise arguments.invalid("labels", expected, labels)
    given = parity.split_batches(given)
    settings = {"precision": precision, "names": parity.output_names(model)}
    tolerance = fmt.tolerances.get(precision) if tolerance is None else tolerance
    return write_checked(fmt, model, path, settings, batches, given, labels, tolerance, **options)


def write_checked(
    fmt, model, path, settings, batches, given=(), labels=None, tolerance=None, overwrite=False, custom_module=None
):
    """Exports to a temporary folder, checks the outputs, moves the files to `path`, and returns a report.

    On `batches` (random images) and `given` (the user's images), the export must match a copy of the model with rounded
    weights to within `tolerance`. On `given`, the report also compares the export with the original model.
    """
    arguments.boolean("overwrite", overwrite)
    arguments.optional(arguments.path, "custom_module", custom_module)
    precision = settings["precision"]
    packages = (*fmt.packages, *(["nncf"] if precision == STATIC else []))
    if missing := [name.replace("_", "-") for name in packages if importlib.util.find_spec(name) is None]:
        raise ImportError(f"This export needs packages that are not installed: pip install {' '.join(missing)}")
    # A traced PyTorch program only runs on the device on which it was traced. If the model is on a GPU, a child process
    # therefore traces it on the CPU.
    here = keras.backend.backend() == fmt.backend and (fmt.backend != "torch" or parity.on_cpu(model))
    if not here:
        custom_objects(model, custom_module)
    parity.check_finite(model)
    if given:
        check_images(model, given[0], "images")
    every, settings = [*batches, *given], settings | {"num_random": len(batches)}
    with _draft(path, overwrite) as draft:
        reduced = with_precision(model, precision)
        wanted = [parity.model_outputs(reduced, batch) for batch in parity.shown(every, "Running the model")]
        outputs = [y for ys in wanted for y in ys]
        parity.check_finite(reduced, outputs)
        if here:
            received = _written_and_run(fmt, reduced, draft, every, settings)
        else:
            received = _in_child(fmt, model, draft, every, settings, custom_module)
        difference = parity.largest_difference(wanted, received)
        parity.check(difference, reduced, outputs, tolerance, f"{str(path)!r} in {precision}")
        change = None
        if given:
            before = [parity.model_outputs(model, batch)[0] for batch in parity.shown(given, "Running the model")]
            after = [ys[0] for ys in received[len(batches) :]]
            change = accuracy_change(np.concatenate(before), np.concatenate(after), labels)
        size = sum(file.stat().st_size for file in draft.parent.rglob("*") if file.is_file())
    checked = {"difference": difference, "num_checked": sum(map(len, every)), "change": change}
    return {"path": path, "precision": precision, "size": size, **checked}


def _written_and_run(fmt, model, path, batches, settings):
    """Writes a model to a file, runs the file in the format's runtime, and returns a list of outputs per batch."""
    getattr(fmt.code, f"write_{fmt.name}")(model, path, settings)
    if settings["precision"] == STATIC:
        fmt.code.calibrate_openvino(path, batches[settings["num_random"] :])
    run = getattr(fmt.code, f"run_{fmt.name}")
    return list(run(path, parity.shown(batches, "Running the export"), settings))


def _in_child(fmt, model, path, batches, settings, custom_module):
    """Calls `_written_and_run` in a child process, and returns the same outputs."""
    with tempfile.TemporaryDirectory(prefix="keras_vit_") as folder:
        file = Path(folder, "arrays.npz")
        np.savez(file, *batches)
        task = {"name": fmt.name, "path": path, "settings": settings, "file": file}
        counts = run_in_child(write_and_run, model, backend=fmt.backend, custom_module=custom_module, **task)
        with np.load(file) as arrays:
            outputs = iter([arrays[name] for name in arrays.files])
        return [[next(outputs) for _ in range(count)] for count in counts]


def write_and_run(model, name, path, settings, file):
    """Exports in the child process. Writes all outputs to the .npz `file`; returns the number of outputs per batch."""
    with np.load(file) as arrays:
        batches = [arrays[key] for key in arrays.files]
    reduced = with_precision(model, settings["precision"])
    outputs = _written_and_run(FORMATS[name], reduced, Path(path), batches, settings)
    np.savez(file, *[y for ys in outputs for y in ys])
    return [len(ys) for ys in outputs]


def refuse_existing(path, overwrite):
    """Raises FileExistsError if the path exists and `overwrite` is False."""
    if path.exists() and not overwrite:
        advice = "Pass overwrite=True to replace it."
        raise FileExistsError(f"Expected a path that does not exist. Received: {str(path)!r}, which exists. {advice}")


@contextlib.contextmanager
def _draft(path, overwrite):
    """Yields a path in a temporary folder. On success, moves all files from this folder to the folder of `path`."""
    refuse_existing(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    # TensorFlow Serving only loads folders whose name is a number, so it ignores the draft.
    with draft_folder(path) as folder:
        yield folder / path.name
        # A format may write several files. Move the file at `path` last, so that it only exists if all files do.
        files = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
        for file in files:
            refuse_existing(path.with_name(file.name), overwrite)
        for file in files:
            (put_folder if file.is_dir() else os.replace)(file, path.with_name(file.name))


_ONNX = ("torch", "onnx", "onnxscript", "onnxruntime")
FORMATS = {
    # Export ONNX on PyTorch. JAX has no exporter to ONNX, and onnxruntime lacks the operation that TensorFlow uses for
    # the exact GELU.
    "onnx": Format("onnx", ".onnx", "torch", _ONNX, torch_formats),
    # With int8_static, outputs may differ from the float32 model by up to half of the model's largest output.
    "openvino": Format(
        *("openvino", ".xml", "tensorflow", ("tensorflow", "openvino"), tensorflow_formats),
        precisions=(*PRECISIONS, STATIC),
        tolerances={STATIC: 0.5},
    ),
    # LiteRT's converter joins some weights, such as the positions and a bias, into one rounded sum. This causes larger
    # errors in float16.
    "litert": Format(
        *("litert", ".tflite", "tensorflow", ("tensorflow", "ai_edge_litert"), tensorflow_formats),
        precisions=("float32", "float16", "int8"),
        tolerances={"float16": 5e-3},
    ),
    "torch_export": Format("torch_export", ".pt2", "torch", ("torch",), torch_formats),
    "saved_model": Format("saved_model", "", "tensorflow", ("tensorflow",), tensorflow_formats),
}


class Options(TypedDict, total=False):
    """Options of all formats, documented in `onnx`."""

    precision: str
    images: np.ndarray | None
    labels: np.ndarray | None
    tolerance: float | None
    overwrite: bool
    custom_module: str | os.PathLike | None


def onnx(model: keras.Model, path: str | os.PathLike, **options: Unpack[Options]) -> dict:
    """Exports a model to ONNX, checks that onnxruntime computes the model's outputs, and returns a report.

    The input is named `images`. It accepts any batch size, and any image size if the model does. A single output is
    named `outputs`; several outputs keep the model's names. The other formats use the same names, except that a
    PyTorch program returns a tuple without names.

    PyTorch writes the files of `onnx` and `torch_export`, and TensorFlow writes the files of `openvino` and `litert`.
    If the model runs on another backend, or on PyTorch with a GPU, the export runs in a new process.

    Args:
        model: A `keras.Model` with one input.
        path: Path of the file, ending in ".onnx". The weights of a model above 2 GB are written to a second file in the
            same folder.
        precision: "float32" (default), "float16", "bfloat16" or "int8", the precision of the stored weights.
            Computations keep the model's precision. "int8" quantizes only the kernels of dense layers, with one scale
            per column.
        images: Images as the model takes them, (batch, height, width, channels), or None (default). With images, the
            report contains how much the outputs of the file differ from the outputs of the original model.
        labels: The classes of `images`, ints (batch,), or None (default). With labels, the report also contains the
            accuracies.
        tolerance: Float, the largest allowed difference between the file's outputs and the model's, after the model's
            weights are converted to `precision`. The difference is divided by max(1, largest output). None (default)
            means 5e-2 if the model computes in bfloat16, 1e-2 if it computes in float16 or on a GPU, and 1e-4 in all
            other cases.
        overwrite: Bool, whether to replace an existing file; default False.
        custom_module: Name or .py path of the module that defines the model's custom layers. It is only needed if the
            export runs in a new process and the layers are defined in the running script or notebook.

    Returns:
        A dict: `path`, `precision`, `size` (bytes), `difference` (the largest difference from the outputs of the model
        with weights in `precision`), `num_checked` (the number of compared images) and `change`. If no `images` are
        given, `change` is None. With `images`, `change` is a dict that compares the first output of the file and of the
        original model: `num_images`, the `largest` and the `mean` absolute difference, and `same_top1`, the number of
        images whose top-1 class stays the same (None if the model has one output). With `labels`, `change` also
        contains the accuracies `before` and `after` the export.

    Raises:
        ImportError: If a package that the format needs is not installed.
        FileExistsError: If `path` exists and `overwrite` is False.
        ValueError: If an argument is invalid, the model does not have exactly one input, or the new process cannot
            import the model's layers.
        ParityError: If weights or outputs are not finite, or if the outputs of the file differ from the model's by more
            than the tolerance. Nothing is written.
        RuntimeError: If the export process fails.

    Example:
    >>> keras_vit.export.onnx(model, "vit.onnx")["difference"]  # doctest: +SKIP
    2.4e-06
    """
    return write_file(FORMATS["onnx"], model, path, **options)


def openvino(model: keras.Model, path: str | os.PathLike, **options: Unpack[Options]) -> dict:
    """Exports a model to OpenVINO's .xml and .bin files.

    Arguments and errors are as in `export.onnx`, but `path` ends in ".xml". OpenVINO chooses the compute precision for
    the processor; set `INFERENCE_PRECISION_HINT` to override it.

    With `precision="int8_static"`, matrix products are also computed in int8, which needs NNCF (`pip install nncf`).
    Dense layers whose input has outliers, as in some MLPs of trained ViTs, stay in float. The ranges of the activations
    are measured on `images`: pass a hundred or more typical images. The default tolerance of this precision is 0.5. The
    report contains `change["same_top1"]`, the number of `images` whose top-1 class stays the same. Measure this
    number on other images too, because the ranges fit other images less well. The precision "int8_static" is meant for
    processors with the int8 instructions VNNI or AMX.
    """
    return write_file(FORMATS["openvino"], model, path, **options)


def litert(model: keras.Model, path: str | os.PathLike, **options: Unpack[Options]) -> dict:
    """Exports a model to LiteRT (TensorFlow Lite) with the signature `serving_default`.

    Arguments and errors are as in `export.onnx`, but `path` ends in ".tflite", "bfloat16" is not supported, and the
    default tolerance for "float16" is 5e-3. Before you run the file, set the shape of the input with
    `resize_tensor_input`.
    """
    return write_file(FORMATS["litert"], model, path, **options)


def torch_export(model: keras.Model, path: str | os.PathLike, **options: Unpack[Options]) -> dict:
    """Exports a model to a PyTorch program, which maps images to a tuple of outputs.

    Arguments and errors are as in `export.onnx`, but `path` ends in ".pt2". `torch.export.load` reads the file without
    Keras.
    """
    return write_file(FORMATS["torch_export"], model, path, **options)
