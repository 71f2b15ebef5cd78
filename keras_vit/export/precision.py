"""Reduces the precision of weights for exports, and measures how the outputs change."""

import keras
import ml_dtypes  # noqa: F401, adds bfloat16 to NumPy; Keras depends on it
import numpy as np
from keras.layers import Dense, EinsumDense

PRECISIONS = ("float32", "float16", "bfloat16", "int8")
# Weights and activations in int8, with ranges from the user's images.
STATIC = "int8_static"


def with_precision(model: keras.Model, precision: str) -> keras.Model:
    """Returns a copy with rounded weights or int8 dense kernels; float32 and int8_static return the model itself."""
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
    # Without the filter, Keras would warn about each layer that it cannot quantize.
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
    """Casts a float32 constant to a precision; returns None if that changes values, or there are fewer than 64."""
    if precision == "float32" or array.dtype != np.float32 or array.size < 64:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        small = array.astype(precision)
    return small if np.array_equal(small.astype("float32"), array) else None


def accuracy_change(before: np.ndarray, after: np.ndarray, labels: np.ndarray | None = None) -> dict:
    """Compares two models' outputs, (batch, ..., num_classes), for the same images; labels are ints (batch,).

    Returns:
        A dict: `num_images`, `largest` and `mean` (absolute changes), `same_top1` (images whose top-1 class stayed),
        and with labels `before` and `after`, the accuracies in [0, 1].
    """
    difference = np.abs(np.asarray(after, "float64") - before)
    ours, theirs = (y.reshape(len(y), -1).argmax(-1) for y in (before, after))
    change = {"num_images": len(ours), "largest": float(difference.max()), "mean": float(difference.mean())}
    change["same_top1"] = int((ours == theirs).sum())
    if labels is not None:
        labels = np.asarray(labels)
        if labels.shape != ours.shape:
            raise ValueError(f"Expected one of `labels` for each of {len(ours)} images. Received: shape {labels.shape}")
        change |= {"before": float((ours == labels).mean()), "after": float((theirs == labels).mean())}
    return change
