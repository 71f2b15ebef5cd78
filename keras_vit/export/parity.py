"""Compares the outputs of an export, computed by the format's runtime, with the outputs of its model."""

import keras
import ml_dtypes  # noqa: F401, adds bfloat16 to NumPy; Keras depends on it
import numpy as np
from keras.layers import Dense, EinsumDense

from keras_vit.console import Progress
from keras_vit.models.finite import non_finite_weights
from keras_vit.prediction.inputs import input_range
from keras_vit.prediction.taps import sublayers

BATCH = 8


class ParityError(RuntimeError):
    """The outputs of an export differ from the model's, or the model has weights or outputs that are not finite."""


def summary(report: dict) -> str:
    """Returns an export's report as text."""
    text = "Wrote {path} ({precision}, {0:.1f} MB): at most {difference:.1e} from the model on {num_checked} images."
    text = text.format(report["size"] / 1e6, **report)
    if (change := report["change"]) is not None:
        line = "On {num_images} images: outputs changed by at most {largest:.2e}, {mean:.2e} on average"
        line += "" if change["same_top1"] is None else "; same top-1 on {same_top1}"
        text += "\n" + line.format(**change)
        if "before" in change:
            text += f"; accuracy {change['before']:.4f} before, {change['after']:.4f} after"
    return text


def probes(model: keras.Model) -> list[np.ndarray]:
    """Returns random batches of 2, 1 and 3 images in the model's input range, of several sizes if it takes any size."""
    inputs = getattr(model, "inputs", None)
    if not inputs or len(inputs) != 1:
        received = f"model {getattr(model, 'name', model)!r} with {len(inputs or [])} inputs"
        raise ValueError(f"Expected a model of one input, built or called once. Received: {received}")
    (spec,) = inputs
    dtype = "float32" if spec.dtype in ("bfloat16", "float16") else spec.dtype
    low, high = (input_range(model) or (-1, 1)) if "float" in dtype else (0, 255)
    rng = np.random.default_rng(0)
    batches = []
    # Models are traced on the first batch. It has 2 images, because tracing would make a batch size of 1 constant.
    for count, extra in ((2, 0), (1, 16), (3, 32)):
        # A side without a fixed length gets at least three patches of 16 pixels. The height and the width differ, so
        # that an export that swaps them fails the comparison.
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
    """Returns the names of an export's outputs. A single output is named "outputs"; several keep the model's names."""
    if len(model.outputs) == 1:
        return ["outputs"]
    names = [name.replace("/", "_") for name in model.output_names]
    return names if len(set(names)) == len(names) else [f"{name}_{i}" for i, name in enumerate(names)]


def model_outputs(model: keras.Model, images: np.ndarray) -> list[np.ndarray]:
    """Returns the model's outputs in float32, as a flat list."""
    # On torch, use predict_on_batch, which disables gradients. On other backends, it would compile each batch size.
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
    """Raises `ParityError` if `difference` is above `tolerance` * max(1, largest output). None chooses a tolerance."""
    if tolerance is None:
        # On PyTorch, a correct export of a B/16 that computes in bfloat16 differed by 1.2e-2. GPUs may compute float32
        # with fewer bits.
        dtypes = {layer.compute_dtype for layer in sublayers(model, keras.Layer)}
        is_exact = dtypes <= {"float32", "float64"} and on_cpu(model)
        tolerance = 5e-2 if "bfloat16" in dtypes else 1e-4 if is_exact else 1e-2
    allowed = tolerance * max(1.0, max(float(np.abs(y).max(initial=0)) for y in outputs))
    # `not <=` is also true for NaN.
    if not difference <= allowed:
        expected = f"{export} to match the outputs of model {model.name!r} within {allowed:.1e}"
        advice = "If the model computes in float16 or bfloat16, its export may round differently: pass a `tolerance`."
        raise ParityError(f"Expected {expected}. Received: {difference:.3g} apart. Nothing was written. {advice}")


PRECISIONS = ("float32", "float16", "bfloat16", "int8")
# In this precision, weights and activations are int8. The ranges of the activations are measured on the user's images.
STATIC = "int8_static"


def with_precision(model: keras.Model, precision: str) -> keras.Model:
    """Returns a copy with rounded weights or int8 dense kernels; the model itself for float32 and int8_static."""
    if precision in ("float32", STATIC):
        return model
    copy = keras.models.clone_model(model)
    weights = model.get_weights()
    if precision != "int8":
        copy.set_weights([_rounded(w, precision) for w in weights])
        return copy
    if not hasattr(keras.quantizers, "Int8QuantizationConfig"):
        raise ValueError(f"Expected Keras 3.13 or newer for precision='int8'. Received: Keras {keras.__version__}")
    copy.set_weights(weights)
    config, kinds = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None), (Dense, EinsumDense)
    # Use a filter, because Keras warns about each layer that it cannot quantize.
    copy.quantize("int8", config=config, filters=lambda layer: isinstance(layer, kinds))
    return copy


def _rounded(weight, precision):
    if weight.dtype != np.float32:
        return weight
    with np.errstate(over="ignore"):
        rounded = weight.astype(precision).astype("float32")
    if not np.isfinite(rounded).all():
        largest = np.abs(weight).max()
        raise ValueError(f"Expected weights that {precision} can hold. Received: weights of up to {largest:.3g}")
    return rounded


def stored(array: np.ndarray, precision: str) -> np.ndarray | None:
    """Casts a float32 constant of 64 or more values to a lower precision; returns None if this would change a value."""
    if precision == "float32" or array.dtype != np.float32 or array.size < 64:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        small = array.astype(precision)
    return small if np.array_equal(small.astype("float32"), array) else None


def accuracy_change(before: np.ndarray, after: np.ndarray, labels: np.ndarray | None = None) -> dict:
    """Returns how the first output and the accuracy changed; `export.onnx` describes this dict as `change`."""
    difference = np.abs(np.asarray(after, "float64") - before)
    ours, theirs = (y.reshape(len(y), -1).argmax(-1) for y in (before, after))
    change = {"num_images": len(ours), "largest": float(difference.max()), "mean": float(difference.mean())}
    change["same_top1"] = int((ours == theirs).sum()) if before[0].size > 1 else None
    if labels is not None:
        labels = np.asarray(labels)
        if labels.shape != ours.shape:
            raise ValueError(f"Expected `labels` of shape ({len(ours)},), one per image. Received: {labels.shape}")
        change |= {"before": float((ours == labels).mean()), "after": float((theirs == labels).mean())}
    return change
