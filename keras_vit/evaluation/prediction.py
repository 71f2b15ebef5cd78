"""Predicts with test-time augmentation, and with several models."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vit import arguments
from keras_vit.evaluation.features import invalid
from keras_vit.models.family import cut_from
from keras_vit.prediction.classes import (
    final_activation,
    mean_probabilities,
    output_activation,
    outputs_named,
    prediction_activation,
)
from keras_vit.prediction.inputs import is_arrays, to_numpy
from keras_vit.prediction.outputs import check_all_read, check_one_input, image_batches, outputs_of_views
from keras_vit.prediction.preprocessing import require_normalization


def predict(
    model: keras.Model, data: Any, *, tta: str | None = None, batch_size: int = 32, verbose: int = 1
) -> np.ndarray:
    """Returns a model's predictions, float32 (num_images, num_outputs), in the order of the images.

    Predictions are probabilities: the softmax of a classifier's logits, or the sigmoid for a model with
    `task="multi_label"` or a single class. With `task="regression"`, predictions are the model's outputs. With `tta`
    (test-time augmentation), predictions are the mean over several views of each image. `keras_vit.predict_images`
    does the same for image files.

    Args:
        model: A `keras.Model` with one output, (batch, num_outputs). It need not be compiled.
        data: Images in the model's value range: an array, a tuple of arrays (images, labels), or an iterable of batches
            with or without labels. Such an iterable is a dataset of `keras_vit.data` without shuffling, a
            `tf.data.Dataset`, a `keras.utils.PyDataset` or another finite iterable.
        tta: None, "flip" (the image and its mirror image), "five_crop" (crops of the corners and the center) or
            "ten_crop" (these crops and their mirror images). Crops need images that are larger than the model's input.
            If the model takes 224 x 224 pixels, read images of 256 x 256 pixels with
            `keras_vit.data.from_dataframe(..., preprocessing=model, image_size=256)`.
        batch_size: Int, images per batch if `data` is arrays.
        verbose: 0 or 1; 1 shows a progress bar.

    Raises:
        ValueError: If `data` is empty, is endless or does not contain images, or if images do not fit the model or
            could not be decoded. The error is also raised if the model's output is not finite, or if the model was
            compiled with a loss that does not fit its task.

    Example:
    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=4)
    >>> predict(model, np.zeros((2, 32, 32, 3)), tta="flip", verbose=0).tolist()  # a new head is zero
    [[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]]

    Reference: [arXiv 1409.4842](https://arxiv.org/abs/1409.4842), section 7.
    """
    check_one_input(model)
    outputs_named(model)
    activation = prediction_activation(model)
    # If the data is a tuple of arrays, it is (images, labels, ...). A list of arrays is a list of batches.
    images = data[0] if isinstance(data, tuple) and is_arrays(data, (1, 2, 3), or_lists=True) else data
    batches, steps = image_batches(images, batch_size)
    views = outputs_of_views(model, batches, steps, verbose, tta=tta)
    predictions = np.concatenate([mean_probabilities(outputs, activation) for outputs in views])
    check_all_read(data, len(predictions))
    return predictions


def ensemble(members: Sequence[keras.Model] | Sequence[ArrayLike], weights: Sequence[float] | None = None) -> Any:
    """Averages the predictions of several models, or builds a model that does so.

    If the members are models, their predictions are averaged: the values that `predict` returns. If the members are
    arrays, they are averaged without conversion, so pass the results of `predict` or `keras_vit.predict_images`.

    Args:
        members: Predictions for the same images, as arrays (num_images, num_outputs) or as DataFrames with the same
            index and columns; or models with the same inputs, outputs and class names. If the models scale pixels
            differently, build them with `include_preprocessing=True`. If the models need different image sizes
            or different resizing, pass their predictions instead.
        weights: Numbers of at least 0, one per member, such as validation accuracies. They are divided by their sum.
            None gives all members the same weight.

    Returns:
        The mean predictions as a float32 array or DataFrame; or a `keras.Model` that shares the members' weights.

    Raises:
        ValueError: If the members do not fit each other, or `weights` does not fit the members.

    Example:
    >>> ensemble([[[0.5, 0.5]], [[1.0, 0.0]]], weights=[3, 1]).tolist()
    [[0.625, 0.375]]

    Reference: [arXiv 1612.01474](https://arxiv.org/abs/1612.01474), section 2.4.
    """
    members = arguments.several("members", members)
    if not members:
        raise invalid("members", "at least one", "none")
    values = [1] * len(members) if weights is None else arguments.several("weights", weights)
    if len(values) != len(members):
        raise invalid("weights", f"{len(members)} numbers, one for each member", f"{len(values)} numbers")
    if not all(arguments.is_number(value) and value >= 0 for value in values) or not sum(values):
        raise invalid("weights", "numbers of at least 0, not all 0", values)
    weights = [float(value) / sum(values) for value in values]
    are_models = [isinstance(member, keras.Model) for member in members]
    if any(are_models) and not all(are_models):
        raise invalid("members", "only models or only predictions", "both")
    return _joint_model(members, weights) if all(are_models) else _mean_predictions(members, weights)


def _mean_predictions(members, weights):
    """Returns the weighted mean of arrays or DataFrames. `weights` sum to 1."""
    first = members[0]
    if any(hasattr(member, "columns") for member in members):
        for axis in ("index", "columns"):
            ours, *others = (list(getattr(member, axis, ())) for member in members)
            theirs = next((other for other in others if other != ours), ours)
            if theirs != ours:
                raise invalid("members", f"DataFrames of the same {axis}, {ours[:5]} ...", f"{theirs[:5]} ...")
    arrays = [to_numpy(member).astype("float32") for member in members]
    if len(shapes := {array.shape for array in arrays}) != 1:
        raise invalid("members", "predictions of one shape", sorted(shapes))
    mean = np.tensordot(np.array(weights), np.stack(arrays), axes=1).astype("float32")
    return type(first)(mean, index=first.index, columns=first.columns) if hasattr(first, "columns") else mean


def _joint_model(members, weights):
    """Returns a model that computes the weighted mean of the members' predictions. `weights` sum to 1."""
    wanted = _shared(members[0])
    for member in members[1:]:
        for name, value in _shared(member).items():
            if value != wanted[name]:
                raise invalid("members", f"models of the same {name}, {wanted[name]!s:.300}", f"{value!s:.300}")
    inputs = keras.Input(members[0].input_shape[1:], name="images")
    outputs = []
    for i, model in enumerate(members):
        # The members' names may be the same, so wrap each member in a model with another name.
        x = cut_from(model, model.inputs[0], model.outputs[0], name=f"member_{i}")(inputs)
        if activation := output_activation(model):
            x = keras.layers.Activation(activation, dtype="float32", name=f"probabilities_{i}")(x)
        outputs.append(x)
    return keras.Model(inputs, WeightedAverage(weights, dtype="float32", name="average")(outputs), name="ensemble")


def _shared(model):
    """Returns {name: value} of the settings that all models of an ensemble must share."""
    layer = require_normalization(model)
    # If the models scale the pixels themselves, they may use different constants, so leave these out of the comparison.
    scaling = {"mean": 0.0, "std": 1.0, "value_range": (0.0, 1.0)} if layer.apply else {}
    return {
        "input shape": model.input_shape,
        "class names": [name for _, name in outputs_named(model)],
        "activation of predictions": final_activation(model),
        "include_preprocessing": layer.apply,
        "preprocessing": layer.preprocessing.changed(**scaling),
    }


@keras.saving.register_keras_serializable(package="keras_vit")
class WeightedAverage(keras.layers.Average):
    """Computes the weighted mean of inputs of one shape. `weights` sum to 1."""

    def __init__(self, weights, **kwargs):
        super().__init__(**kwargs)
        self.shares = [float(weight) for weight in weights]

    def call(self, inputs):
        return sum(share * x for share, x in zip(self.shares, inputs, strict=True))

    def get_config(self):
        return {**super().get_config(), "weights": self.shares}
