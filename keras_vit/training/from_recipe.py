"""Builds the model, optimizer, loss, metrics and lengths of a recipe."""

import logging
import math
import os
from typing import NamedTuple

import keras

from keras_vit.models.catalog import FAMILIES
from keras_vit.models.family import build as build_variant
from keras_vit.models.pretrained import from_pretrained
from keras_vit.models.zoo import find
from keras_vit.training.layer_decay import LayerDecay
from keras_vit.training.optimizers import SGD, AdamW
from keras_vit.training.schedules import WarmupDecay
from keras_vit.training.trainable import enable_lora, freeze
from keras_vit.weights.hub import is_name

logger = logging.getLogger("keras_vit")


def build(recipe, num_classes, weights=None, class_names=None):
    """Builds a recipe's model for raw images of 0..255, not compiled. Freezes the layers that are not trained."""
    given = {
        "image_size": recipe.image_size,
        "num_classes": num_classes,
        "class_names": class_names or None,
        "task": "multi_label" if recipe.loss == "sigmoid" else "single_label",
        "include_preprocessing": True,
        "dtype": recipe.dtype,
        **recipe.model,
    }
    if weights is not None and (os.path.exists(weights) or is_name(weights) or find(weights) is not None):
        # The checkpoint decides the architecture, not `recipe.variant`.
        model = from_pretrained(weights, **given)
    else:
        model = build_variant(FAMILIES[recipe.family], recipe.variant, {"weights": weights, **given})
    if recipe.train == "head":
        freeze(model)
    elif recipe.train == "lora":
        enable_lora(model, recipe.lora_rank)
    return model


def optimizer(recipe, model, total_steps, warmup_steps):
    """Builds a recipe's optimizer; only `layer_decay` uses `model`."""
    schedule = WarmupDecay(recipe.learning_rate, total_steps, warmup_steps, recipe.decay)
    options = {"global_clipnorm": recipe.clip}
    if recipe.accumulate > 1:
        options["gradient_accumulation_steps"] = recipe.accumulate
    if recipe.ema:
        options |= {"use_ema": True, "ema_momentum": recipe.ema}
    # The paper's Adam decays the weights as AdamW does.
    made = SGD(schedule, **options) if recipe.optimizer == "sgd" else AdamW(schedule, recipe.weight_decay, **options)
    if recipe.layer_decay:
        made = LayerDecay.from_model(made, model, recipe.layer_decay)
    return made


def loss(recipe, one_hot):
    """Builds a recipe's loss on logits; with `one_hot`, labels have a number per class."""
    if recipe.loss == "sigmoid":
        # The source sums over the classes, so that the step size does not depend on the number of classes.
        return _SumOverClasses(from_logits=True)
    if one_hot:
        return keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=recipe.label_smoothing)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@keras.saving.register_keras_serializable(package="keras_vit")
class _SumOverClasses(keras.losses.BinaryCrossentropy):
    """Binary cross-entropy, summed over the classes."""

    def call(self, y_true, y_pred):
        return super().call(y_true, y_pred) * y_pred.shape[-1]


def kind_of_labels(recipe, spec):
    """Returns the kind of labels in a dataset's `element_spec`: "int", or "multi_hot" for several per image."""
    if not isinstance(spec, tuple):
        raise ValueError("Expected images with labels to train and test on. Received: images alone")
    if len(spec[1].shape) == 1:
        return "int"
    if recipe.loss != "sigmoid":
        raise ValueError(f"Expected loss='sigmoid' for images of several labels. Received: loss={recipe.loss!r}")
    return "multi_hot"


def metrics(num_classes, one_hot, kind):
    """Returns a classifier's metrics for `compile`; `kind` is from `kind_of_labels`."""
    if kind == "multi_hot":
        return [
            keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0),
            keras.metrics.AUC(name="auc", multi_label=True, num_labels=num_classes, from_logits=True),
        ]
    wanted = ["accuracy"]
    if num_classes > 10:
        top_5 = keras.metrics.TopKCategoricalAccuracy if one_hot else keras.metrics.SparseTopKCategoricalAccuracy
        wanted.append(top_5(5, name="top_5_accuracy"))
    return wanted


class Lengths(NamedTuple):
    """Lengths in steps: of the run, of its warm-up, and of an epoch, which ends with an evaluation."""

    total: int
    warmup: int
    epoch: int

    @property
    def epochs(self):
        """Epochs of the run; the last may be shorter."""
        return -(-self.total // self.epoch)


def batch_size_for(num_images):
    """Chooses a batch size, a power of two from 16 to 64, for at least about 20 batches per epoch."""
    return min(64, max(16, 2 ** int(math.log2(max(1, num_images / 20)))))


def lengths(recipe, num_images, num_test_images):
    """Returns the `Lengths` of a recipe. If the warm-up is too long, warns and takes a tenth of the run."""
    steps = num_images / recipe.batch_size
    total = recipe.steps or max(1, recipe.min_steps, round(recipe.epochs * steps))
    warmup = recipe.warmup_steps or round(recipe.warmup_epochs * steps + recipe.warmup_percent / 100 * total)
    if warmup >= total:
        logger.warning(
            "Expected a warm-up shorter than the run, %d steps. Received: %d steps. It takes a tenth, %d steps; "
            "`warmup_steps` sets another.",
            *(total, warmup, total // 10),
        )
        warmup = total // 10
    # Short epochs are joined, so that evaluating and saving take no more time than training.
    epoch = max(math.ceil(steps), num_test_images // recipe.batch_size, min(25, total // 20))
    return Lengths(total, warmup, min(total, epoch))
