"""Writes an export, compares it with the model, and keeps it only if the outputs agree."""

import contextlib
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.export import parity
from keras_vit.export.child import custom_objects, run_in_child
from keras_vit.export.precision import PRECISIONS, STATIC, accuracy_change, with_precision
from keras_vit.files import draft_folder, put_folder


class Format(NamedTuple):
    """An export format; `code` is a module with the functions `write_<name>` and `run_<name>`.

    `write(model, path, settings)` writes a file and needs `backend`. `run(path, batches, settings)` yields the outputs.
    `settings` are JSON and contain the `precision` and the `names` of the outputs.
    """

    name: str
    suffix: str
    backend: str
    packages: tuple
    code: object
    precisions: tuple = PRECISIONS
    tolerances: dict = {}


def write_file(fmt, model, path, precision="float32", images=None, labels=None, tolerance=None, **options):
    """Exports to a file; arguments are as in `formats.onnx`."""
    path = Path(path)
    if path.suffix != fmt.suffix:
        raise ValueError(f"Expected `path` to end in {fmt.suffix!r}. Received: {str(path)!r}")
    arguments.choice("precision", precision, fmt.precisions)
    if labels is not None and images is None:
        raise ValueError("Expected `images` where `labels` are given. Received: images=None")
    if precision == STATIC and (images is None or not len(images)):
        raise ValueError(f"Expected `images` to calibrate with for precision={STATIC!r}. Received: none")
    batches = parity.probes(model)
    given = [] if images is None else parity.split_batches(np.asarray(images, batches[0].dtype))
    settings = {"precision": precision, "names": parity.output_names(model)}
    tolerance = fmt.tolerances.get(precision) if tolerance is None else tolerance
    return write_checked(fmt, model, path, settings, batches, given, labels, tolerance, **options)


def write_checked(
    fmt, model, path, settings, batches, given=(), labels=None, tolerance=None, overwrite=False, custom_module=None
):
    """Exports to a temporary folder, compares the outputs on all batches, moves the files, and returns a report.

    `batches` are random images, and `given` are the user's. The report describes how the outputs for `given` change.
    """
    precision = settings["precision"]
    packages = (*fmt.packages, *(["nncf"] if precision == STATIC else []))
    if missing := [name.replace("_", "-") for name in packages if importlib.util.find_spec(name) is None]:
        raise ImportError(f"This export needs packages that are not installed: pip install {' '.join(missing)}")
    # A traced torch program only runs on the device that it was traced on, so trace it on the CPU.
    here = keras.backend.backend() == fmt.backend and (fmt.backend != "torch" or parity.on_cpu(model))
    if not here:
        custom_objects(model, custom_module)
    parity.check_finite(model)
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
            # Only the first output is compared with the original model.
            before = [parity.model_outputs(model, batch)[0] for batch in parity.shown(given, "Running the model")]
            after = [ys[0] for ys in received[len(batches) :]]
            change = accuracy_change(np.concatenate(before), np.concatenate(after), labels)
        size = sum(file.stat().st_size for file in draft.parent.rglob("*") if file.is_file())
    checked = {"difference": difference, "num_checked": sum(map(len, every)), "change": change}
    return {"path": path, "precision": precision, "size": size, **checked}


def _written_and_run(fmt, model, path, batches, settings):
    """Writes a model, and returns the outputs of the format's runtime, one list per batch."""
    getattr(fmt.code, f"write_{fmt.name}")(model, path, settings)
    if settings["precision"] == STATIC:
        fmt.code.calibrate_openvino(path, batches[settings["num_random"] :])
    run = getattr(fmt.code, f"run_{fmt.name}")
    return list(run(path, parity.shown(batches, "Running the export"), settings))


def _in_child(fmt, model, path, batches, settings, custom_module):
    """Returns the outputs of `_written_and_run` in a child process."""
    with tempfile.TemporaryDirectory(prefix="keras_vit_") as folder:
        file = Path(folder, "arrays.npz")
        np.savez(file, *batches)
        task = {"name": fmt.name, "path": path, "settings": settings, "file": file}
        counts = run_in_child(write_and_run, model, backend=fmt.backend, custom_module=custom_module, **task)
        with np.load(file) as arrays:
            outputs = iter([arrays[name] for name in arrays.files])
        return [[next(outputs) for _ in range(count)] for count in counts]


def write_and_run(model, name, path, settings, file):
    """Replaces the batches in a file by the outputs, in a child process; returns the number of outputs per batch."""
    from keras_vit.export.formats import FORMATS

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
    """Yields a path in a temporary folder next to `path`; on success, moves all files of the folder next to `path`."""
    refuse_existing(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    # TensorFlow Serving only loads folders whose name is a number, so it ignores the draft.
    with draft_folder(path) as folder:
        yield folder / path.name
        # A format may write several files. Move the file that the user named last.
        files = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
        for file in files:
            refuse_existing(path.with_name(file.name), overwrite)
        for file in files:
            (put_folder if file.is_dir() else os.replace)(file, path.with_name(file.name))
