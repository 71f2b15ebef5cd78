"""Checks an export against its model in the format's own runtime, and puts it in its place only if the two agree."""

import contextlib
import dataclasses
import importlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

from keras_vit.export import precision as precisions
from keras_vit.export.child import run_in_child
from keras_vit.files import draft_folder
from keras_vit.models.preprocessing import normalization_of

# How many images a model answers at a time here.
BATCH = 8


class ParityError(RuntimeError):
    """An export that answers otherwise than its model."""


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What an export is and how its answers differ from the model's.

    Attributes:
        path: Path of the file.
        precision: "float32", "float16", "bfloat16" or "int8".
        size: Int, bytes of all its files.
        difference: Float, the largest absolute difference from the model of the same precision, over `num_checked`
            images.
        num_checked: Int, how many images the export was checked on.
        change: `precision.AccuracyChange` from the model as it was given, on the caller's images; None without images.
    """

    path: Path
    precision: str
    size: int
    difference: float
    num_checked: int
    change: "precisions.AccuracyChange | None" = None

    def __str__(self):
        text = (
            f"Wrote {self.path} ({self.precision}, {self.size / 1e6:.1f} MB): at most {self.difference:.1e} from the "
            f"model on {self.num_checked} images."
        )
        return text if self.change is None else f"{text}\n{self.change}"


def probes(model: keras.Model) -> list[np.ndarray]:
    """Makes the images that an export of a model is checked on: batches of 2, 1 and 3.

    They are random in the range that the model takes. Where it takes any size, each batch has another one.

    Args:
        model: A `keras.Model` of one input, (batch, height, width, channels) or any other shape.

    Returns:
        A list of arrays. The first, which models are traced on, has more than one image: tracing takes a 1 for fixed.

    Raises:
        ValueError: If the model has not exactly one input, or was never built.

    Example:

    >>> from keras_vit.export.parity import probes
    >>> [x.shape for x in probes(keras_vit.ViTB16())]
    [(2, 224, 224, 3), (1, 224, 224, 3), (3, 224, 224, 3)]
    """
    inputs = getattr(model, "inputs", None)
    if not inputs or len(inputs) != 1:
        raise ValueError(
            "Expected a model of one input, built or called once. Received: model "
            f"{getattr(model, 'name', model)!r} with {len(inputs or [])} inputs"
        )
    (spec,) = inputs
    low, high = value_range(model, spec.dtype)
    rng = np.random.default_rng(0)
    batches = []
    for count, extra in ((2, 0), (1, 1), (3, 2)):
        # Patches of up to 16 pixels fit twice and more; the sides differ, so that a swap of them is seen.
        free = (48 + 16 * extra, 80 + 16 * extra)
        shape = [free[axis % 2] if side is None else side for axis, side in enumerate(spec.shape[1:])]
        batches.append(rng.uniform(low, high, (count, *shape)).astype(_numpy_dtype(spec.dtype)))
    return batches


def value_range(model: keras.Model, dtype: str = "float32") -> tuple[int, int]:
    """The range of the images that a model takes: 0..255 where it scales them itself, -1..1 otherwise.

    Args:
        model: A `keras.Model`.
        dtype: String, the type of its images; integers are of 0..255 whatever the model does with them.

    Example:

    >>> from keras_vit.export.parity import value_range
    >>> value_range(keras_vit.ViT("Ti/16")), value_range(keras_vit.ViT("Ti/16", include_preprocessing=True))
    ((-1, 1), (0, 255))
    """
    try:
        raw = normalization_of(model).apply
    except ValueError:
        raw = False
    return (0, 255) if raw or np.issubdtype(np.dtype(_numpy_dtype(dtype)), np.integer) else (-1, 1)


def on_cpu(model: keras.Model) -> bool:
    """Whether a model computes on the CPU, where float32 is float32: GPUs and TPUs multiply with fewer bits."""
    if keras.backend.backend() == "torch":
        return all(variable.value.device.type == "cpu" for variable in model.variables)
    return all(device.startswith("cpu") for device in keras.distribution.list_devices())


def default_tolerance(model: keras.Model) -> float:
    """How far an export's answers may lie from a model's, in parts of the largest output or of 1, whichever is more.

    1e-4 for float32 on a CPU, 5e-2 where any layer computes in bfloat16, 1e-2 for what lies between.
    """
    dtypes = set(_compute_dtypes(model))
    # A correct B/16 in bfloat16 was 1.2e-2 from PyTorch's; on GPUs float32 has fewer bits than on the CPU.
    if "bfloat16" in dtypes:
        return 5e-2
    return 1e-4 if dtypes <= {"float32", "float64"} and on_cpu(model) else 1e-2


def _compute_dtypes(model):
    """The types that a model's layers compute in, and those of models within it."""
    for layer in model.layers:
        yield layer.compute_dtype
        if isinstance(layer, keras.Model):
            yield from _compute_dtypes(layer)


def _numpy_dtype(dtype):
    return "float32" if dtype in ("bfloat16", "float16") else dtype


def output_names(model: keras.Model) -> list[str]:
    """Names a model's outputs: "outputs" for a single one, else as the model names them."""
    if len(model.outputs) == 1:
        return ["outputs"]
    names = [name.replace("/", "_") for name in model.output_names]
    return names if len(set(names)) == len(names) else [f"{name}_{i}" for i, name in enumerate(names)]


def answers(model: keras.Model, images: np.ndarray) -> list[np.ndarray]:
    """Returns a model's outputs, flattened to a list, for images of any number."""
    # Compiling for each size of batch takes far longer than a few images do; on torch `predict` keeps no gradients.
    call = model.predict_on_batch if keras.backend.backend() == "torch" else model
    parts = [
        [keras.ops.convert_to_numpy(y).astype("float32") for y in keras.tree.flatten(call(batch))]
        for batch in _batches(images)
    ]
    return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]


def _batches(images):
    return [images[i : i + BATCH] for i in range(0, len(images), BATCH)]


def largest_difference(expected: list[list[np.ndarray]], received: list[list[np.ndarray]]) -> float:
    """The largest absolute difference between outputs, infinity where a shape or a NaN differs.

    Example:

    >>> from keras_vit.export.parity import largest_difference
    >>> largest_difference([[np.zeros(2)]], [[np.array([0.0, 0.5])]])
    0.5
    """
    largest = 0.0
    for ours, theirs in zip(expected, received, strict=True):
        if [y.shape for y in ours] != [y.shape for y in theirs]:
            return float("inf")
        for a, b in zip(ours, theirs, strict=True):
            difference = np.abs(a.astype("float64") - b).max(initial=0)
            # A NaN is larger than any number here.
            largest = max(largest, float("inf") if np.isnan(difference) else float(difference))
    return largest


def write_checked(
    model: keras.Model,
    path: str | os.PathLike,
    write_file: Callable,
    run: Callable,
    *,
    backend: str,
    suffix: str,
    precision: str = "float32",
    supported: tuple[str, ...] = precisions.PRECISIONS,
    images: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    tolerance: float | None = None,
    overwrite: bool = False,
    custom_module: str | os.PathLike | None = None,
) -> ExportReport:
    """Writes an export to a temporary folder, checks it, and moves it to its place.

    Args:
        model: The `keras.Model`.
        path: Path of the file, ending in `suffix`.
        write_file: Function of an importable module, called as `write_file(model, path, precision)` with the model of
            the wanted precision, on `backend`.
        run: Called as `run(path, batches, names)` with the outputs' names; returns a list of outputs for each batch,
            from the format's own runtime.
        backend: The backend on which `write_file` works: "tensorflow" or "torch".
        suffix: String, as ".onnx".
        precision: String, one of `supported`.
        supported: The precisions that the format can store.
        images: Images as the model takes them, on which the change of the answers is measured; None for none.
        labels: Their labels, ints; None for none.
        tolerance: Float, the largest difference allowed from the model of the same precision, in parts of the largest
            output or of 1, whichever is more; None for `default_tolerance`.
        overwrite: Bool, whether an existing file may be replaced.
        custom_module: As in `child.run_in_child`.

    Returns:
        An `ExportReport`.

    Raises:
        ValueError: If an argument is out of its range.
        FileExistsError: If there is something at `path` and `overwrite` is False.
        ParityError: If the export answers otherwise than the model. Nothing is left at `path`.
    """
    path = Path(path)
    if path.suffix != suffix:
        raise ValueError(f"Expected `path` to end in {suffix!r}. Received: {str(path)!r}")
    if precision not in supported:
        raise ValueError(
            f"Invalid value received for argument `precision`. Expected, for {suffix} files, one of "
            f"{', '.join(supported)}. Received: {precision!r}"
        )
    if labels is not None and images is None:
        raise ValueError("Expected `images` where `labels` are given. Received: images=None")
    batches = probes(model)
    with _draft(path, overwrite) as draft:
        reduced = precisions.with_precision(model, precision)
        expected = [answers(reduced, batch) for batch in batches]
        given = [] if images is None else _batches(np.asarray(images, batches[0].dtype))
        wanted = expected + [answers(reduced, batch) for batch in given]
        _write_on(backend, write_file, model, reduced, draft, precision, custom_module)
        received = run(draft, batches + given, output_names(reduced))
        difference = largest_difference(wanted, received)
        tolerance = default_tolerance(reduced) if tolerance is None else tolerance
        allowed = tolerance * max(1.0, max(float(np.abs(y).max(initial=0)) for ys in wanted for y in ys))
        # Written so that NaN fails too.
        if not difference <= allowed:
            raise ParityError(
                f"Expected the {precision} export to answer as the model does, to {allowed:.1e}. Received: outputs "
                f"{difference:.3g} apart, in {suffix}'s own runtime. It was not written to {str(path)!r}. A model that "
                "computes in float16 or bfloat16 may round otherwise there: `tolerance` says what is allowed."
            )
        change = None
        if given:
            # The model as it was given, and of several outputs the first.
            ours = wanted[len(batches) :] if reduced is model else [answers(model, batch) for batch in given]
            theirs = received[len(batches) :]
            change = precisions.accuracy_change(*(np.concatenate([y[0] for y in ys]) for ys in (ours, theirs)), labels)
        size = sum(file.stat().st_size for file in draft.parent.iterdir())
    num_checked = sum(len(batch) for batch in batches + given)
    return ExportReport(path, precision, size, difference, num_checked, change)


@contextlib.contextmanager
def _draft(path, overwrite):
    """Gives a path of the same name in a folder beside `path`, and moves that folder's files to their place.

    A format may write other files beside the one named; that one is moved last.
    """

    def refuse_existing(target):
        if target.exists() and not overwrite:
            raise FileExistsError(
                f"Expected a path where there is nothing. Received: {str(target)!r}, which exists. Pass overwrite=True "
                "to replace it."
            )

    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft_folder(path) as folder:
        yield folder / path.name
        files = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
        for file in files:
            refuse_existing(path.with_name(file.name))
        for file in files:
            os.replace(file, path.with_name(file.name))


def _write_on(backend, write_file, model, reduced, path, precision, custom_module):
    """Writes the reduced model here where this is the backend and the model is on the CPU, or in a child process."""
    here = keras.backend.backend() == backend
    # What torch traces remembers its device.
    if here and (backend != "torch" or on_cpu(reduced)):
        write_file(reduced, path, precision)
    elif precision != "int8":
        run_in_child(write_file, reduced, backend=backend, custom_module=custom_module, path=path, precision=precision)
    else:
        # A .keras file loses which layers inside those of a user are quantized: it brings the model, this the weights.
        weights = path.with_name("int8.npz")
        np.savez(weights, *reduced.get_weights())
        run_in_child(
            write_quantized,
            model,
            backend=backend,
            custom_module=custom_module,
            path=path,
            weights=weights,
            module=write_file.__module__,
            name=write_file.__name__,
        )
        weights.unlink()


def write_quantized(model, path, weights, module, name):
    """Quantizes a model in a child process, gives it the weights quantized outside, and writes it."""
    reduced = precisions.with_precision(model, "int8")
    with np.load(weights) as file:
        reduced.set_weights([file[key] for key in file.files])
    getattr(importlib.import_module(module), name)(reduced, path, "int8")


def require(*packages):
    """Raises where a package that an export needs is not installed.

    Args:
        *packages: Pairs of a module's name and the name that pip knows it by.

    Raises:
        ImportError: Names all that are missing.

    Example:

    >>> from keras_vit.export.parity import require
    >>> require(("numpy", "numpy"))
    """
    missing = [name for module, name in packages if importlib.util.find_spec(module) is None]
    if missing:
        raise ImportError(f"This export needs packages that are not installed: pip install {' '.join(missing)}")
