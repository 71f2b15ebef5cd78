"""Smaller weights for exports, and what they change in the answers."""

import dataclasses

import keras
import numpy as np

PRECISIONS = ("float32", "float16", "bfloat16", "int8")


def with_precision(model: keras.Model, precision: str) -> keras.Model:
    """Copies a model with its weights rounded to a precision; it goes on computing in its own.

    The exports store such weights in as many bits, so that a file shrinks to a half or a quarter and the answers change
    by the rounding alone.

    Args:
        model: A `keras.Model`.
        precision: "float32" returns the model itself. "float16" and "bfloat16" round every weight. "int8" is Keras' own
            quantization of the dense layers' kernels, one scale a column; what they compute on stays in floats, since
            activations rounded to int8 differ by whole steps from one runtime to another.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: If `precision` is none of these, a weight is too large for it, or this version of Keras cannot
            quantize kernels alone.

    Example:

    >>> from keras_vit.export.precision import with_precision
    >>> model = keras_vit.ViTB16(num_classes=10)
    >>> with_precision(model, "float16").count_params() == model.count_params()
    True
    """
    if precision == "float32":
        return model
    if precision not in PRECISIONS:
        raise ValueError(
            f"Invalid value received for argument `precision`. Expected one of {', '.join(PRECISIONS)}. "
            f"Received: {precision!r}"
        )
    copy = keras.models.clone_model(model)
    weights = model.get_weights()
    if precision == "int8":
        if not hasattr(keras.quantizers, "Int8QuantizationConfig"):
            raise ValueError(
                "Expected a Keras that quantizes kernels alone for precision='int8', as 3.13 and newer do. Received: "
                f"Keras {keras.__version__}"
            )
        copy.set_weights(weights)
        copy.quantize(
            "int8",
            config=keras.quantizers.Int8QuantizationConfig(activation_quantizer=None),
            # Keras warns of each layer that it cannot quantize.
            filters=lambda layer: isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense)),
        )
        return copy
    copy.set_weights([_rounded(w, precision) for w in weights])
    return copy


def _rounded(weight, precision):
    weight = np.asarray(weight)
    if weight.dtype != np.float32:
        return weight
    rounded = as_dtype(weight, precision).astype("float32")
    if not np.isfinite(rounded[np.isfinite(weight)]).all():
        raise ValueError(
            f"Expected weights that {precision} can hold. Received: weights of up to {np.abs(weight).max():.3g}"
        )
    return rounded


def as_dtype(array: np.ndarray, dtype: str) -> np.ndarray:
    """Casts an array, to bfloat16 too, which NumPy has not by itself."""
    if dtype == "bfloat16":
        # Keras' backends bring it.
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).astype(dtype)


def stored(array: np.ndarray, precision: str) -> np.ndarray | None:
    """Casts a float32 constant of an export to a precision where that loses nothing.

    Args:
        array: The constant.
        precision: One of PRECISIONS.

    Returns:
        The smaller array, or None where it would be another one, or is too small to be worth it.

    Example:

    >>> from keras_vit.export.precision import stored
    >>> stored(np.full((64, 64), 0.5, "float32"), "float16").dtype
    dtype('float16')
    """
    if precision == "float32" or array.dtype != np.float32 or array.size < 64:
        return None
    small = as_dtype(array, precision)
    return small if np.array_equal(small.astype("float32"), array) else None


@dataclasses.dataclass(frozen=True)
class AccuracyChange:
    """How a smaller model's answers differ from the model's own on some images.

    Attributes:
        num_images: Int.
        largest: Float, the largest absolute change of an output.
        mean: Float, the mean absolute change.
        same_top1: Int, the number of images whose largest output is the same.
        before: Float, the share of images that the model gets right; None without labels.
        after: Float, the share that the export gets right; None without labels.
    """

    num_images: int
    largest: float
    mean: float
    same_top1: int
    before: float | None = None
    after: float | None = None

    def __str__(self):
        text = (
            f"On {self.num_images} images: outputs changed by at most {self.largest:.2e}, {self.mean:.2e} on average; "
            f"same top-1 on {self.same_top1}"
        )
        return text if self.before is None else f"{text}; accuracy {self.before:.4f} before, {self.after:.4f} after"


def accuracy_change(before: np.ndarray, after: np.ndarray, labels: np.ndarray | None = None) -> AccuracyChange:
    """Compares two models' outputs for the same images.

    Args:
        before: Outputs of the model, (batch, ..., num_classes).
        after: Outputs of the export, of the same shape.
        labels: Ints, (batch,), or None.

    Returns:
        An `AccuracyChange`.

    Raises:
        ValueError: If the number of labels is not that of the images.

    Example:

    >>> from keras_vit.export.precision import accuracy_change
    >>> print(accuracy_change(np.eye(2), np.eye(2) * 0.5, labels=[0, 1]))
    On 2 images: outputs changed by at most 5.00e-01, 2.50e-01 on average; same top-1 on 2; accuracy 1.0000 before, \
1.0000 after
    """
    difference = np.abs(np.asarray(after, "float64") - before)
    ours, theirs = (y.reshape(len(y), -1).argmax(-1) for y in (before, after))
    accuracies = (None, None)
    if labels is not None:
        labels = np.asarray(labels)
        if labels.shape != ours.shape:
            raise ValueError(
                f"Expected `labels` to hold one int for each of the {len(ours)} images. Received: shape {labels.shape}"
            )
        accuracies = tuple(float((y == labels).mean()) for y in (ours, theirs))
    return AccuracyChange(
        len(ours), float(difference.max()), float(difference.mean()), int((ours == theirs).sum()), *accuracies
    )
