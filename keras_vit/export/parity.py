"""Compares the outputs of an export, in the format's runtime, with its model."""

import keras
import numpy as np

from keras_vit.console import Progress
from keras_vit.models.finite import non_finite_weights
from keras_vit.prediction.inputs import input_range
from keras_vit.prediction.taps import sublayers

BATCH = 8


class ParityError(RuntimeError):
    """The outputs of an export differ from its model's."""


def summary(report: dict) -> str:
    """Returns an export's report as text."""
    text = "Wrote {path} ({precision}, {0:.1f} MB): at most {difference:.1e} from the model on {num_checked} images."
    text = text.format(report["size"] / 1e6, **report)
    if (change := report["change"]) is not None:
        line = "On {num_images} images: outputs changed by at most {largest:.2e}, {mean:.2e} on average; same top-1 on "
        text += "\n" + (line + "{same_top1}").format(**change)
        if "before" in change:
            text += f"; accuracy {change['before']:.4f} before, {change['after']:.4f} after"
    return text


def probes(model: keras.Model) -> list[np.ndarray]:
    """Returns random batches of 2, 1 and 3 images in the model's input range, of different sizes if possible."""
    inputs = getattr(model, "inputs", None)
    if not inputs or len(inputs) != 1:
        received = f"model {getattr(model, 'name', model)!r} with {len(inputs or [])} inputs"
        raise ValueError(f"Expected a model of one input, built or called once. Received: {received}")
    (spec,) = inputs
    dtype = "float32" if spec.dtype in ("bfloat16", "float16") else spec.dtype
    low, high = (input_range(model) or (-1, 1)) if "float" in dtype else (0, 255)
    rng = np.random.default_rng(0)
    batches = []
    # Tracing makes a batch size of 1 constant, so the first batch, which models are traced on, has 2 images.
    for count, extra in ((2, 0), (1, 16), (3, 32)):
        # Each side has at least two patches of 16 pixels. Height and width differ to detect a swap.
        free = (48 + extra, 80 + extra)
        shape = [free[axis % 2] if side is None else side for axis, side in enumerate(spec.shape[1:])]
        batches.append(rng.uniform(low, high, (count, *shape)).astype(dtype))
    return batches


def on_cpu(model: keras.Model) -> bool:
    """Returns True if the model computes on the CPU; GPUs and TPUs may multiply float32 with fewer bits."""
    if keras.backend.backend() == "torch":
        return all(variable.value.device.type == "cpu" for variable in model.variables)
    return all(device.startswith("cpu") for device in keras.distribution.list_devices())


def output_names(model: keras.Model) -> list[str]:
    """Returns the names of the outputs: "outputs" for a single output, else the model's names."""
    if len(model.outputs) == 1:
        return ["outputs"]
    names = [name.replace("/", "_") for name in model.output_names]
    return names if len(set(names)) == len(names) else [f"{name}_{i}" for i, name in enumerate(names)]


def model_outputs(model: keras.Model, images: np.ndarray) -> list[np.ndarray]:
    """Returns the model's outputs in float32, as a flat list."""
    # On torch, predict_on_batch disables gradients. On other backends, it would compile for each batch size.
    torch = keras.backend.backend() == "torch"
    parts = []
    for batch in split_batches(images):
        outputs = model.predict_on_batch(batch) if torch else model(batch, training=False)
        parts.append([keras.ops.convert_to_numpy(y).astype("float32") for y in keras.tree.flatten(outputs)])
    return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]


def split_batches(images: np.ndarray, size: int = BATCH) -> list[np.ndarray]:
    """Splits images into batches."""
    return [images[i : i + size] for i in range(0, len(images), size)]


def shown(batches: list[np.ndarray], title: str):
    """Yields batches of images, with a progress bar."""
    return Progress(sum(map(len, batches)), "image", "images", title=title).over(batches, len)


def largest_difference(expected: list[list[np.ndarray]], received: list[list[np.ndarray]]) -> float:
    """Returns the largest absolute difference; infinity if a shape differs or a value is NaN."""
    largest = 0.0
    for ours, theirs in zip(expected, received, strict=True):
        if [y.shape for y in ours] != [y.shape for y in theirs]:
            return float("inf")
        for a, b in zip(ours, theirs, strict=True):
            difference = np.abs(a.astype("float64") - b).max(initial=0)
            largest = max(largest, float("inf") if np.isnan(difference) else float(difference))
    return largest


def check_finite(model, outputs=()):
    """Raises `ParityError` if weights of the model or outputs are NaN or infinite."""
    if found := non_finite_weights(model):
        received = f"NaN or infinity in {found[0]!r}" + (f" and {len(found) - 1} more" if found[1:] else "")
        advice = "Export a checkpoint from before the training failed."
        raise ParityError(f"Expected finite weights of model {model.name!r}. Received: {received}. {advice}")
    if not all(np.isfinite(y).all() for y in outputs):
        raise ParityError(f"Expected finite outputs of model {model.name!r}. Received: NaN or infinity.")


def check(difference, model, outputs, tolerance, export):
    """Raises `ParityError` if a difference is above `tolerance` x max(1, largest output); None means the default."""
    tolerance = _default_tolerance(model) if tolerance is None else tolerance
    allowed = tolerance * max(1.0, max(float(np.abs(y).max(initial=0)) for y in outputs))
    # `not <=` is also true for NaN.
    if not difference <= allowed:
        expected = f"{export} to match the outputs of model {model.name!r} within {allowed:.1e}"
        advice = "A model that computes in float16 or bfloat16 may round differently there."
        raise ParityError(f"Expected {expected}. Received: {difference:.3g} apart. Nothing was written. {advice}")


def _default_tolerance(model):
    """Returns 1e-4 for float32 on a CPU, 5e-2 if any layer computes in bfloat16, else 1e-2."""
    # A correct B/16 in bfloat16 differed by 1.2e-2 on PyTorch; GPUs may compute float32 with fewer bits.
    dtypes = {layer.compute_dtype for layer in sublayers(model, keras.Layer)}
    if "bfloat16" in dtypes:
        return 5e-2
    return 1e-4 if dtypes <= {"float32", "float64"} and on_cpu(model) else 1e-2
