"""Compares an export, run in its format's own runtime, with its model."""

import dataclasses
from pathlib import Path

import keras
import numpy as np

from keras_vit.export.precision import AccuracyChange
from keras_vit.models.inputs import range_of

# Images per call of the model.
BATCH = 8


class ParityError(RuntimeError):
    """An export gives different outputs from its model."""


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """The size of an export in bytes, and the differences between its outputs and the model's.

    `difference` is the largest absolute difference from the model of the same precision, over `num_checked` images;
    `change` the `precision.AccuracyChange` from the original model on the caller's images, None without images.
    """

    path: Path
    precision: str
    size: int
    difference: float
    num_checked: int
    change: AccuracyChange | None = None

    def __str__(self):
        text = (
            f"Wrote {self.path} ({self.precision}, {self.size / 1e6:.1f} MB): at most {self.difference:.1e} from the "
            f"model on {self.num_checked} images."
        )
        return text if self.change is None else f"{text}\n{self.change}"


def probes(model: keras.Model) -> list[np.ndarray]:
    """Returns random images in the range that a model takes: batches of 2, 1 and 3, of different sizes if it can."""
    inputs = getattr(model, "inputs", None)
    if not inputs or len(inputs) != 1:
        raise ValueError(
            "Expected a model of one input, built or called once. Received: model "
            f"{getattr(model, 'name', model)!r} with {len(inputs or [])} inputs"
        )
    (spec,) = inputs
    dtype = "float32" if "float" in spec.dtype else spec.dtype
    low, high = (range_of(model) or (-1, 1)) if dtype == "float32" else (0, 255)
    rng = np.random.default_rng(0)
    batches = []
    # More than one image first: models are traced on it, and tracing makes a constant of a 1.
    for count, extra in ((2, 0), (1, 16), (3, 32)):
        # Patches of up to 16 pixels fit twice and more; the sides differ, so that a swap of them is seen.
        free = (48 + extra, 80 + extra)
        shape = [free[axis % 2] if side is None else side for axis, side in enumerate(spec.shape[1:])]
        batches.append(rng.uniform(low, high, (count, *shape)).astype(dtype))
    return batches


def on_cpu(model: keras.Model) -> bool:
    """Whether a model computes on the CPU, where float32 is float32: GPUs and TPUs multiply with fewer bits."""
    if keras.backend.backend() == "torch":
        return all(variable.value.device.type == "cpu" for variable in model.variables)
    return all(device.startswith("cpu") for device in keras.distribution.list_devices())


def output_names(model: keras.Model) -> list[str]:
    """Names a model's outputs: "outputs" for a single one, else as the model names them."""
    if len(model.outputs) == 1:
        return ["outputs"]
    names = [name.replace("/", "_") for name in model.output_names]
    return names if len(set(names)) == len(names) else [f"{name}_{i}" for i, name in enumerate(names)]


def outputs_of(model: keras.Model, images: np.ndarray) -> list[np.ndarray]:
    """Returns a model's outputs as float32, flattened to a list, for any number of images."""
    # Compiling for each size of batch takes far longer than a few images do; on torch `predict` keeps no gradients.
    torch = keras.backend.backend() == "torch"
    parts = []
    for batch in batches_of(images):
        outputs = model.predict_on_batch(batch) if torch else model(batch, training=False)
        parts.append([keras.ops.convert_to_numpy(y).astype("float32") for y in keras.tree.flatten(outputs)])
    return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]


def batches_of(images: np.ndarray, size: int = BATCH) -> list[np.ndarray]:
    """Splits images into batches."""
    return [images[i : i + size] for i in range(0, len(images), size)]


def largest_difference(expected: list[list[np.ndarray]], received: list[list[np.ndarray]]) -> float:
    """The largest absolute difference between outputs, infinity where a shape or a NaN differs."""
    largest = 0.0
    for ours, theirs in zip(expected, received, strict=True):
        if [y.shape for y in ours] != [y.shape for y in theirs]:
            return float("inf")
        for a, b in zip(ours, theirs, strict=True):
            difference = np.abs(a.astype("float64") - b).max(initial=0)
            largest = max(largest, float("inf") if np.isnan(difference) else float(difference))
    return largest


def check(difference, model, outputs, tolerance, export):
    """Raises `ParityError` if a difference is above `tolerance` (None: the default) x the largest output, or x 1."""
    tolerance = _default_tolerance(model) if tolerance is None else tolerance
    allowed = tolerance * max(1.0, max(float(np.abs(y).max(initial=0)) for y in outputs))
    # Written so that NaN fails too.
    if not difference <= allowed:
        raise ParityError(
            f"Expected {export} to give the outputs of model {model.name!r}, to {allowed:.1e}. Received: outputs "
            f"{difference:.3g} apart. Nothing was written. A model that computes in float16 or bfloat16 may round "
            "differently there."
        )


def _default_tolerance(model):
    """1e-4 for float32 on a CPU, 5e-2 where any layer computes in bfloat16, 1e-2 in between."""
    # A correct B/16 in bfloat16 was 1.2e-2 from PyTorch's; on GPUs float32 has fewer bits than on the CPU.
    dtypes = set(_compute_dtypes(model))
    if "bfloat16" in dtypes:
        return 5e-2
    return 1e-4 if dtypes <= {"float32", "float64"} and on_cpu(model) else 1e-2


def _compute_dtypes(model):
    for layer in model.layers:
        yield layer.compute_dtype
        if isinstance(layer, keras.Model):
            yield from _compute_dtypes(layer)
