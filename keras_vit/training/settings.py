"""Defines `Recipe`, the settings of a training run. Builds the model, optimizer, loss and metrics of a recipe."""

import ast
import contextlib
import dataclasses
import logging
import math
import os
from collections.abc import Mapping
from typing import NamedTuple

import keras

from keras_vit import arguments
from keras_vit.models.catalog import FAMILIES
from keras_vit.models.family import build as build_variant
from keras_vit.models.pretrained import from_pretrained
from keras_vit.models.zoo import ROWS
from keras_vit.training.optimizers import DECAYS, SGD, AdamW, LayerDecay, WarmupDecay
from keras_vit.training.trainable import enable_lora, freeze
from keras_vit.weights.hub import is_name

# `Recipe.model` must not contain these arguments of a builder, because other fields, the data or `run` set them.
_NOT_FOR_MODEL = {"variant", "image_size", "num_classes", "weights", "include_preprocessing"}
_WARMUPS = ("warmup_steps", "warmup_epochs", "warmup_percent")
# Fields that only describe a recipe.
TEXTS = ("source", "cost", "expected")
_POSITIVE = ("batch_size", "accumulate", "learning_rate", "steps", "epochs", "lora_rank", "clip", "sam")
_CHECKS = {
    arguments.positive_number: (*_POSITIVE, "layer_decay"),
    arguments.fraction: ("holdout", "ema"),
    arguments.share: ("crop_scale", "label_smoothing", "layer_decay"),
    arguments.number: (*_WARMUPS, "min_steps", "weight_decay"),
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of a training run: the model, the data, the optimizer and the length.

    Args:
        name: The name on the command line.
        source, cost, expected: `source` is where the recipe comes from. `cost` is the time and the hardware that the
            source reports, and `expected` is the result that the source reports.
        dataset: The TFDS name of the dataset that the source trains on.
        train_split, test_split: The TFDS split to train on, and the TFDS split to evaluate on after each epoch and at
            the end.
        holdout: Float in (0, 1). If a folder contains no test images, this share of the images of each class becomes
            the test images.
        family: "vit", "bit", "coatnet" or "efficientnet". The model is built by `keras_vit.ViT`, `keras_vit.BiT`,
            `keras_vit.CoAtNet` or `keras_vit.EfficientNet`.
        variant, image_size, weights: Arguments of the family's builder. If `weights` is a path, a model on a hub or the
            full name of a published checkpoint, the checkpoint determines the architecture, and `variant` is not used.
        model: Dict of other arguments of the family's builder.
        train, lora_rank: `train` names the weights to train: "all", "head" or "lora". With "lora", the head and LoRA
            updates of rank `lora_rank` are trained.
        dtype: "float32", "mixed_bfloat16" or "mixed_float16".
        crop, crop_scale: `crop` is the crop of the training images, "pretrain", "finetune", "pad" or "eval", as in
            `keras_vit.data.Crop`. `crop_scale`, 0 to 1, is the smallest share of the image area that the crop
            "pretrain" keeps.
        flip: True mirrors half of the training images.
        policy: The augmentation, one of `keras_vit.data.POLICIES`.
        label_smoothing: The share of each label that is spread over the classes, 0 to 1. It must be 0 with the loss
            "sigmoid" and with the policy "deit".
        loss: "softmax", or "sigmoid" for a binary label per class.
        batch_size: Images per batch. None uses 16 to 64 images, depending on the number of training images.
        steps, epochs, min_steps: The length of the run. Set either `steps`, the number of batches, or `epochs`. With
            `epochs`, the run has at least `min_steps` batches.
        optimizer: "sgd", "adamw" or "adam". "adamw" and "adam" are one optimizer, which DeiT calls AdamW and the ViT
            paper calls Adam.
        learning_rate, sweep: `learning_rate` is the peak of the schedule. `sweep` lists the peaks that the source
            tried.
        weight_decay: Float of at least 0, the weight decay of the kernels. It must be 0 with "sgd".
        clip: The largest global gradient norm; None for no clipping.
        decay: The schedule after the warm-up: "cosine", "linear", "constant" or "rsqrt".
        warmup_steps, warmup_epochs, warmup_percent: The length of the linear warm-up in steps, in epochs or in percent
            of the run. Set at most one of the three.
        accumulate: The number of batches for each update of the weights. `steps` and all other lengths still count
            batches, not updates.
        ema: Momentum of a moving average of the weights, in (0, 1). At the end, this average replaces the weights. None
            trains without an average.
        layer_decay: A factor. The learning rate of each block is this factor times the learning rate of the block after
            it. None gives all blocks the same learning rate.
        sam: The radius of sharpness-aware minimization, as `rho` in `SAM`. None trains without SAM.

    Raises:
        ValueError: If a field is out of range, or two fields contradict each other.

    Example:
    >>> recipe = keras_vit.training.RECIPES["finetune_pets"]
    >>> recipe.batch_size, recipe.steps, recipe.learning_rate
    (512, 500, 0.01)
    """

    name: str
    source: str
    cost: str
    expected: str
    dataset: str = ""
    train_split: str = "train"
    test_split: str = "test"
    holdout: float = 0.2
    family: str = "vit"
    variant: str = "B/16"
    image_size: int | tuple = 224
    model: Mapping = dataclasses.field(default_factory=dict)
    weights: str | None = None
    train: str = "all"
    lora_rank: int = 8
    dtype: str = "float32"
    crop: str = "pretrain"
    crop_scale: float = 0.05
    flip: bool = True
    policy: str = "none"
    label_smoothing: float = 0.0
    loss: str = "softmax"
    batch_size: int | None = 512
    steps: int | None = None
    epochs: float | None = None
    min_steps: int = 0
    optimizer: str = "sgd"
    learning_rate: float = 0.03
    sweep: tuple = ()
    weight_decay: float = 0.0
    clip: float | None = 1.0
    decay: str = "cosine"
    warmup_steps: int = 0
    warmup_epochs: float = 0.0
    warmup_percent: float = 0.0
    accumulate: int = 1
    ema: float | None = None
    layer_decay: float | None = None
    sam: float | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            _checked(field.name, getattr(self, field.name), field.type)
        for key, allowed in (
            ("family", tuple(FAMILIES)),
            ("train", ("all", "head", "lora")),
            ("loss", ("softmax", "sigmoid")),
            ("optimizer", ("adam", "adamw", "sgd")),
            ("decay", tuple(DECAYS)),
            ("dtype", ("float32", "mixed_bfloat16", "mixed_float16")),
            ("crop", ("pretrain", "finetune", "pad", "eval")),
        ):
            arguments.choice(key, getattr(self, key), allowed)
        for check, keys in _CHECKS.items():
            arguments.each(check, optional=True, **{key: getattr(self, key) for key in keys})
        arguments.image_size(self.image_size)
        warmups = [getattr(self, key) for key in _WARMUPS]
        smooths = self.loss == "sigmoid" or self.policy == "deit"
        family = FAMILIES[self.family]
        fields = [field.name for field in dataclasses.fields(family.config)]
        known = {*fields, *family.connect.__kwdefaults__, "name", "dtype"} - _NOT_FOR_MODEL
        unknown = sorted(set(self.model) - known)
        for wrong, expected, received in (
            ((self.steps is None) == (self.epochs is None), "one of `steps` and `epochs`", (self.steps, self.epochs)),
            (self.steps and self.min_steps, "`min_steps` only with `epochs`", self.min_steps),
            (sum(map(bool, warmups)) > 1, "one of `warmup_steps`, `warmup_epochs` and `warmup_percent`", warmups),
            (min(*warmups, self.min_steps) < 0, f"`min_steps` and a warm-up of 0 or more, {_WARMUPS}", warmups),
            (self.weight_decay < 0, "a `weight_decay` of 0 or more", self.weight_decay),
            (self.warmup_percent >= 100, "a warm-up of less than 100 percent", self.warmup_percent),
            (self.optimizer == "sgd" and self.weight_decay, "no `weight_decay` with sgd", self.weight_decay),
            (
                self.label_smoothing and smooths,
                "no `label_smoothing` with the sigmoid loss, nor with the policy 'deit', which smooths the labels",
                self.label_smoothing,
            ),
            (self.ema and self.layer_decay, "no `ema` with `layer_decay`", (self.ema, self.layer_decay)),
            (
                unknown,
                f"arguments of keras_vit.{family.builder} in `model`: {', '.join(sorted(known))}",
                ", ".join(unknown) + arguments.nearest(next(iter(unknown), None), known),
            ),
        ):
            if wrong:
                raise ValueError(f"Expected {expected}. Received: {received}")

    @property
    def command(self):
        """The command line that runs the recipe on the source's data."""
        return f"keras-vit train --recipe {self.name} --data {self.dataset or 'FOLDER'}"

    def describe(self):
        """Returns all fields as text, one per line."""
        rows = [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]
        rows.insert(2, ("command", self.command))
        return "\n".join(f"{key:16}{value}" for key, value in rows)

    def replace(self, changes):
        """Returns a copy with other settings; raises a ValueError for an unknown field or a value of the wrong type.

        The keys of `changes` are fields, or "model." followed by an argument of the builder. The values may also be
        strings that contain Python literals. New `steps` reset `epochs` and `min_steps`, and new `epochs` reset `steps`
        and `min_steps`. A new warm-up resets the two other fields for warm-ups.

        >>> recipe = keras_vit.training.RECIPES["finetune_cifar"]
        >>> recipe.replace({"learning_rate": "0.01", "model.dropout_rate": 0.1}).model
        {'dropout_rate': 0.1}
        """
        kinds = {field.name: field.type for field in dataclasses.fields(self) if field.name not in ("name", "model")}
        fields, model = {}, dict(self.model)
        for key, value in changes.items():
            if isinstance(value, str):
                # Text that is not a Python literal stays a string.
                with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                    value = ast.literal_eval(value)
            if key.startswith("model."):
                model[key.removeprefix("model.")] = value
                continue
            if key not in kinds:
                raise ValueError(
                    f"Expected a setting of a recipe: {', '.join(kinds)}, or model.ARGUMENT. Received: {key!r}"
                    + arguments.nearest(key, kinds)
                )
            fields[key] = _checked(key, value, kinds[key])
        if fields.get("steps") or fields.get("epochs"):
            fields = {"steps": None, "epochs": None, "min_steps": 0, **fields}
        if fields.keys() & set(_WARMUPS):
            fields = {**dict.fromkeys(_WARMUPS, 0), **fields}
        return dataclasses.replace(self, **fields, model=model)


def _checked(key, value, kind):
    """Converts `value` to `kind`, the type of the field `key`. Raises a ValueError if this is not possible."""
    if isinstance(value, list):
        value = tuple(value)
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    value = value.item() if getattr(value, "shape", None) == () else value
    if type(value) is int and isinstance(0.0, kind) and arguments.is_number(value):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        expected = getattr(kind, "__name__", str(kind))
        raise ValueError(f"Expected `{key}` to be {expected}. Received: {value!r}")
    return value


logger = logging.getLogger("keras_vit")


def build(recipe, num_classes, weights=None, class_names=None):
    """Builds a recipe's model for pixels of 0..255, with `trainable` set by the recipe. The model is not compiled."""
    task = "multi_label" if recipe.loss == "sigmoid" else "single_label"
    given = {"image_size": recipe.image_size, "num_classes": num_classes, "class_names": class_names or None}
    given |= {"task": task, "include_preprocessing": True, "dtype": recipe.dtype, **recipe.model}
    if weights is not None and (os.path.exists(weights) or is_name(weights) or weights in ROWS):
        # The checkpoint determines the architecture, and `recipe.variant` is not used.
        model = from_pretrained(weights, **given)
    else:
        model = build_variant(FAMILIES[recipe.family], recipe.variant, {"weights": weights, **given})
    if recipe.train == "head":
        freeze(model)
    elif recipe.train == "lora":
        enable_lora(model, recipe.lora_rank)
    return model


def optimizer(recipe, model, total_steps, warmup_steps):
    """Builds the optimizer of a recipe. `model` is used only if the recipe has `layer_decay`."""
    schedule = WarmupDecay(recipe.learning_rate, total_steps, warmup_steps, recipe.decay)
    options = {"global_clipnorm": recipe.clip}
    if recipe.accumulate > 1:
        options["gradient_accumulation_steps"] = recipe.accumulate
    if recipe.ema:
        options |= {"use_ema": True, "ema_momentum": recipe.ema}
    # Use AdamW for "adam" too, because the ViT paper's Adam also decays the weights as AdamW does.
    made = SGD(schedule, **options) if recipe.optimizer == "sgd" else AdamW(schedule, recipe.weight_decay, **options)
    if recipe.layer_decay:
        made = LayerDecay.from_model(made, model, recipe.layer_decay)
    return made


def loss(recipe, one_hot):
    """Builds a recipe's loss, which takes logits. `one_hot` is True if each label consists of one number per class."""
    if recipe.loss == "sigmoid":
        # The recipe's source sums the loss over the classes, and Keras would average it.
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
    """Returns the kind of labels in a dataset's `element_spec`: "int", or "multi_hot" (several classes per image)."""
    if not isinstance(spec, tuple):
        raise ValueError("Expected images with labels to train and test on. Received: only images")
    if len(spec[1].shape) == 1:
        return "int"
    if recipe.loss != "sigmoid":
        raise ValueError(f"Expected loss='sigmoid' for images with several labels. Received: loss={recipe.loss!r}")
    return "multi_hot"


def metrics(num_classes, one_hot, kind):
    """Returns a classifier's metrics for `compile`. `kind` is the result of `kind_of_labels`."""
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
    """The lengths of the run, the warm-up and an epoch, in steps. An epoch ends with an evaluation."""

    total: int
    warmup: int
    epoch: int

    @property
    def epochs(self):
        """The number of epochs. The last epoch may be shorter."""
        return -(-self.total // self.epoch)


def batch_size_for(num_images):
    """Returns 16, 32 or 64: the largest batch size with at least 20 batches per epoch, or 16 if there is none."""
    return min(64, max(16, 2 ** int(math.log2(max(1, num_images / 20)))))


def lengths(recipe, num_images, num_test_images):
    """Returns the `Lengths` of a recipe. If the warm-up is too long, warns and uses 10% of the run."""
    steps = num_images / recipe.batch_size
    total = recipe.steps or max(1, recipe.min_steps, round(recipe.epochs * steps))
    warmup = recipe.warmup_steps or round(recipe.warmup_epochs * steps + recipe.warmup_percent / 100 * total)
    if warmup >= total:
        logger.warning(
            "Expected a warm-up shorter than the run of %d steps. Received: %d steps. The warm-up now takes a tenth of "
            "the run, %d steps. To change it, set `warmup_steps`.",
            *(total, warmup, total // 10),
        )
        warmup = total // 10
    # If epochs are short, join several of them, so that evaluating and saving do not take more time than training.
    epoch = max(math.ceil(steps), num_test_images // recipe.batch_size, min(25, total // 20))
    return Lengths(total, warmup, min(total, epoch))
