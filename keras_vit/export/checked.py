"""Writes an export, compares it with its model, and keeps it only if the outputs agree."""

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.export import parity
from keras_vit.export.child import custom_objects, run_in_child
from keras_vit.export.precision import PRECISIONS, STATIC, accuracy_change, with_precision
from keras_vit.files import draft_folder


class Format(NamedTuple):
    """A format: `write(model, path, precision)` needs `backend`; `run(path, batches, names)` returns the outputs.

    `calibrate(path, batches)` quantizes a written file for the precision "int8_static".
    """

    suffix: str
    backend: str
    packages: tuple
    write: Callable
    run: Callable
    precisions: tuple = PRECISIONS
    tolerances: dict = {}
    calibrate: Callable | None = None


def write_checked(
    fmt, model, path, precision="float32", images=None, labels=None, tolerance=None, overwrite=False, custom_module=None
):
    """Exports to a temporary folder, checks the outputs, then moves the files; arguments as in `formats.onnx`."""
    if missing := [name for name in fmt.packages if importlib.util.find_spec(name) is None]:
        names = " ".join(name.replace("_", "-") for name in missing)
        raise ImportError(f"This export needs packages that are not installed: pip install {names}")
    path = Path(path)
    if path.suffix != fmt.suffix:
        raise ValueError(f"Expected `path` to end in {fmt.suffix!r}. Received: {str(path)!r}")
    arguments.one_of("precision", precision, fmt.precisions)
    if labels is not None and images is None:
        raise ValueError("Expected `images` where `labels` are given. Received: images=None")
    static = precision == STATIC
    if static and (images is None or not len(images)):
        raise ValueError(f"Expected `images` to calibrate with for precision={STATIC!r}. Received: none")
    if static and importlib.util.find_spec("nncf") is None:
        raise ImportError(f"precision={STATIC!r} needs a package that is not installed: pip install nncf")
    stored = "float32" if static else precision
    batches = parity.probes(model)
    # A traced torch program keeps the device that it was traced on.
    here = keras.backend.backend() == fmt.backend and (fmt.backend != "torch" or parity.on_cpu(model))
    if not here:
        custom_objects(model, custom_module)
    with _draft(path, overwrite) as draft:
        reduced = with_precision(model, stored)
        given = [] if images is None else parity.batches_of(np.asarray(images, batches[0].dtype))
        wanted = [parity.outputs_of(reduced, batch) for batch in parity.shown(batches + given, "Running the model")]
        if here:
            fmt.write(reduced, draft, stored)
        else:
            _write_elsewhere(fmt, model, reduced, draft, stored, custom_module)
        if static:
            fmt.calibrate(draft, given)
        received = fmt.run(draft, parity.shown(batches + given, "Running the export"), parity.output_names(reduced))
        difference = parity.largest_difference(wanted, received)
        if tolerance is None:
            tolerance = fmt.tolerances.get(precision)
        outputs = [y for ys in wanted for y in ys]
        parity.check(difference, reduced, outputs, tolerance, f"{str(path)!r} in {precision}")
        change = None
        if given:
            # Only the first output is compared with the original model.
            before = [parity.outputs_of(model, batch)[0] for batch in parity.shown(given, "Running the model")]
            after = [ys[0] for ys in received[len(batches) :]]
            change = accuracy_change(np.concatenate(before), np.concatenate(after), labels)
        size = sum(file.stat().st_size for file in draft.parent.iterdir())
    num_checked = sum(len(batch) for batch in batches + given)
    return parity.ExportReport(path, precision, size, difference, num_checked, change)


def refuse_existing(path, overwrite):
    """Raises FileExistsError if the path exists and `overwrite` is False."""
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"Expected a path that does not exist. Received: {str(path)!r}, which exists. Pass overwrite=True to "
            "replace it."
        )


@contextlib.contextmanager
def _draft(path, overwrite):
    """Yields a path in a temporary folder next to `path`; on success, moves all files of the folder next to `path`."""
    refuse_existing(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft_folder(path) as folder:
        yield folder / path.name
        # A format may write several files; the one named by the user is moved last.
        files = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
        for file in files:
            refuse_existing(path.with_name(file.name), overwrite)
        for file in files:
            os.replace(file, path.with_name(file.name))


def _write_elsewhere(fmt, model, reduced, path, precision, custom_module):
    """Writes the reduced model in a child process."""
    options = {"backend": fmt.backend, "custom_module": custom_module, "path": path}
    if precision != "int8":
        run_in_child(fmt.write, reduced, precision=precision, **options)
        return
    # A .keras file does not record which layers inside custom layers are quantized: the child quantizes again.
    weights = path.with_name("int8.npz")
    np.savez(weights, *reduced.get_weights())
    module, name = fmt.write.__module__, fmt.write.__name__
    run_in_child(write_quantized, model, weights=weights, module=module, name=name, **options)
    weights.unlink()


def write_quantized(model, path, weights, module, name):
    """In a child process: quantizes the model to int8, sets the saved weights and writes it."""
    reduced = with_precision(model, "int8")
    with np.load(weights) as file:
        reduced.set_weights([file[key] for key in file.files])
    getattr(importlib.import_module(module), name)(reduced, path, "int8")
