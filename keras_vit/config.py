"""The base class of all model configs, and the `Preprocessing` of images."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import ClassVar

import keras
import numpy as np

from keras_vit import activations, arguments

# The default image side in pixels. By default, a model for images of any size stores position embeddings for this side.
DEFAULT_IMAGE_SIZE = 224
# The largest allowed number of classes.
MOST_CLASSES = 2**20

# The target of an image is one class (single_label), any number of classes (multi_label), or numbers (regression).
TASKS = ("single_label", "multi_label", "regression")
# The largest number of blocks in a model or of units in a stage, and the largest number of stages. A file with a larger
# number is damaged.
MOST_LAYERS, MOST_STAGES = 1024, 8
INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos3", "lanczos5", "area")
# Images are scaled in float32, so no `std` may be below _SMALLEST, and no number in a `Preprocessing` above _LARGEST.
_SMALLEST, _LARGEST = 1e-6, 1e6
# {interpolation filter: the only value of `antialias` that it allows}.
_ANTIALIAS = {"nearest": False, "area": True}
# The padding of strided convolutions: "same" pads like TensorFlow. "symmetric" pads all sides equally, like PyTorch.
PADDINGS = ("same", "symmetric")

# (field, dependent field). If the caller changes only the first field, `replace` derives the second field again.
_FOLLOWS = (
    ("hidden_dim", "head_dim"),
    ("num_heads", "head_dim"),
    ("image_size", "grid_size"),
    ("image_size", "table_image_size"),
    ("pooling", "class_token"),
    ("qkv_bias", "key_bias"),
)


def checked(check, *args, optional=False, **options):
    """Returns a dataclass field that `check(name, value, *args)` validates; with `optional`, the field may be None."""

    def check_field(name, value):
        return None if optional and value is None else check(name, value, *args)

    return dataclasses.field(metadata={"check": check_field, "optional": optional}, **options)


def checked_activation(name, value):
    """Returns an activation's name, or a user's function unchanged."""
    return activations.name_or_function(activations.get(value, name))


def stage_sizes(name, value, least=0):
    """Returns `value`, a list of the number of units in each stage, as a tuple of ints; raises for other values."""
    if not isinstance(value, (tuple, list)) or len(value) < least:
        raise arguments.invalid(name, "the number of units of each stage, as in (3, 4, 9)", value)
    if len(value) > MOST_STAGES:
        raise arguments.invalid(name, f"at most {MOST_STAGES} stages", value)
    return tuple(arguments.positive_int(name, num_units, MOST_LAYERS) for num_units in value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The resizing, cropping and scaling that a model expects of its images.

    Args:
        value_range: (low, high). Pixels of 0 and 255 are scaled to `low` and `high` before the mean is subtracted.
        mean: Float, or one float per channel, in the units of `value_range`.
        std: Float, or one float per channel, in the units of `value_range`. The default mean and std map images of
            0..255 to [-1, 1], as the official checkpoints expect.
        interpolation: "bilinear", "bicubic", "nearest", "lanczos3", "lanczos5" or "area".
        antialias: Bool. If True, images are filtered when they shrink, and evaluation rounds resized pixels to
            integers, as Pillow does. If False, neither happens, as in the official code. None means False for
            "bilinear" and "nearest", else True.
        crop_fraction: Float in (0, 1], the share of a side that the centre crop keeps. If the model expects sides of
            `size` pixels, images are first resized to `floor(size / crop_fraction)`.
        resize_mode: "squash" resizes both sides to `floor(size / crop_fraction)`, even if the aspect ratio changes.
            "crop" keeps the aspect ratio and resizes the shorter side to this size. "pad" keeps the aspect ratio,
            resizes the longer side to this size, and pads the image with the mean. All modes then crop the centre. None
            means "squash" if `crop_fraction` is 1, else "crop".
        crop_rounding: The rounding of the crop's corner if it falls on half a pixel. "even" rounds to the even pixel,
            as in torchvision and timm. "down" rounds down, as in transformers.

    Raises:
        ValueError: If a value is out of range.

    Example:

    >>> keras_vit.Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)).interpolation
    'bilinear'
    """

    value_range: tuple[float, float] = (0.0, 1.0)
    mean: float | tuple[float, ...] = 0.5
    std: float | tuple[float, ...] = 0.5
    interpolation: str = "bilinear"
    antialias: bool | None = None
    crop_fraction: float = 1.0
    resize_mode: str | None = None
    crop_rounding: str = "even"

    def __post_init__(self):
        value_range, mean, std = (_numbers(name, getattr(self, name)) for name in ("value_range", "mean", "std"))
        if len(value_range) != 2 or value_range[1] - value_range[0] < _SMALLEST:
            raise arguments.invalid("value_range", f"(low, high) with high >= low + {_SMALLEST:g}", self.value_range)
        if min(std) < _SMALLEST:
            raise arguments.invalid("std", f"positive numbers of at least {_SMALLEST:g}", self.std)
        arguments.choice("interpolation", self.interpolation, INTERPOLATIONS)
        arguments.choice("crop_rounding", self.crop_rounding, ("even", "down"))
        if not arguments.is_number(self.crop_fraction) or not 0 < self.crop_fraction <= 1:
            raise arguments.invalid("crop_fraction", "a number in (0, 1]", self.crop_fraction)
        arguments.optional(arguments.boolean, "antialias", self.antialias)
        only = _ANTIALIAS.get(self.interpolation)
        if None not in (only, self.antialias) and self.antialias != only:
            expected = f"None or {only} with interpolation={self.interpolation!r}"
            raise arguments.invalid("antialias", expected, self.antialias)
        arguments.choice("resize_mode", self.resize_mode, ("crop", "squash", "pad", None))
        resolved = {
            "value_range": value_range,
            "mean": mean,
            "std": std,
            "antialias": self._usual_antialias() if self.antialias is None else self.antialias,
            "crop_fraction": float(self.crop_fraction),
            "resize_mode": self._usual_mode() if self.resize_mode is None else self.resize_mode,
        }
        for name, value in resolved.items():
            object.__setattr__(self, name, value)

    def _usual_antialias(self):
        return self.interpolation not in ("bilinear", "nearest")

    def _usual_mode(self):
        return "squash" if self.crop_fraction == 1 else "crop"

    def changed(self, **changes) -> "Preprocessing":
        """Returns a copy with changed values. Derives `antialias` and `resize_mode` again if they were defaults."""
        usual = {}
        if self.antialias == self._usual_antialias() or changes.get("interpolation") in _ANTIALIAS:
            usual["antialias"] = None
        if self.resize_mode == self._usual_mode():
            usual["resize_mode"] = None
        return dataclasses.replace(self, **{**usual, **changes})

    def check_channels(self, channels):
        """Raises if the number of values in `mean` or `std` is neither 1 nor `channels`."""
        for name in ("mean", "std"):
            constants = getattr(self, name)
            if len(constants) not in (1, channels):
                raise ValueError(
                    f"Expected `{name}` to hold one number, or one for each of the images' {channels} channels. "
                    f"Received: {constants}"
                )

    def for_channels(self, channels) -> "Preprocessing":
        """Returns a copy for images with `channels` channels. Averages `mean` and `std` if their lengths do not fit."""
        constants = {"mean": self.mean, "std": self.std}
        averaged = {name: sum(c) / len(c) for name, c in constants.items() if len(c) not in (1, channels)}
        return dataclasses.replace(self, **averaged)

    @property
    def offset_and_scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The pair (offset, scale). Each is a tuple of one value, or of one value per channel.

        A pixel x of 0..255 becomes (x - offset) / scale.
        """
        low, high = self.value_range
        levels = 255 / (high - low)
        return tuple(levels * (value - low) for value in self.mean), tuple(levels * value for value in self.std)


def preprocessing_record(value):
    """Returns a `Preprocessing`, built from its fields if `value` is a dict."""
    if isinstance(value, Mapping):
        return arguments.record(Preprocessing, value)
    if not isinstance(value, Preprocessing):
        raise arguments.invalid("preprocessing", "a keras_vit.Preprocessing or a dict of its fields", value)
    return value


def _numbers(name, value):
    """Converts a number, or a list, tuple or array of numbers, to a tuple of floats; raises if one exceeds 1e6."""
    values = value.tolist() if hasattr(value, "tolist") else value
    values = values if isinstance(values, (tuple, list)) else (values,)
    if not values or not all(arguments.is_number(number) and abs(number) <= _LARGEST for number in values):
        raise arguments.invalid(name, f"a number up to {_LARGEST:g}, or one per channel", value)
    return tuple(map(float, values))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The base class of the configs of all model families: shared fields, checks, copies, and conversion to JSON."""

    # The name of the model family in JSON.
    family: ClassVar[str] = ""
    # Fields that determine the shapes of the weights. Error messages list them.
    sizes: ClassVar[tuple[str, ...]] = ("in_channels", "num_classes")
    # The field that sets the size of the position tables, if the model takes images of any size.
    table_field: ClassVar[str | None] = None

    image_size: int | tuple[int, int] | tuple[None, None] = (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
    in_channels: int = checked(arguments.positive_int, arguments.LARGEST, default=3)
    num_classes: int = checked(arguments.non_negative_int, MOST_CLASSES, default=1000)
    classifier_activation: str | Callable | None = checked(checked_activation, default="linear")  # noqa: RUF009
    preprocessing: Preprocessing = dataclasses.field(default_factory=Preprocessing)
    # If True, the model scales raw images of 0..255 itself.
    include_preprocessing: bool = checked(arguments.boolean, default=False)
    # The fields below do not change the outputs, so configs that differ only in these fields are equal.
    class_names: tuple[str, ...] | None = dataclasses.field(default=None, compare=False)
    task: str = checked(arguments.choice, TASKS, default="single_label", compare=False)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if "check" in field.metadata:
                self._set(field.name, field.metadata["check"](field.name, getattr(self, field.name)))
        self._set("image_size", arguments.image_size(self.image_size))
        self._set("preprocessing", preprocessing_record(self.preprocessing))
        # Do not compare the number of names with `num_classes`, because a head may be added later.
        self._set("class_names", arguments.class_names(self.class_names, None))
        self.preprocessing.check_channels(self.in_channels)

    @classmethod
    def from_variant(cls, variant, **overrides):
        """Returns the config of a variant, such as "B/16" for `ViTConfig`; `overrides` set other fields."""
        return arguments.record(cls, {**cls.variant_sizes(variant), **overrides})

    @staticmethod
    def variant_sizes(variant):
        """Returns a dict of the fields that a variant, such as "B/16", sets."""
        raise NotImplementedError

    @classmethod
    def variant_model_name(cls, variant):
        """Returns the name of a variant's model, such as "vit_B16"."""
        return f"{cls.family}_" + str(variant).removeprefix(f"{cls.family}_").replace("/", "").replace("+", "_")

    @classmethod
    def name_from_fields(cls, fields):
        """Returns the name of the variant with these config fields, such as "ViT-B/16", or None if no variant fits."""
        return None

    @classmethod
    def variant_from_fields(cls, fields):
        """Returns the variant with these config fields, such as "B/16", or None if no variant fits."""
        return re.sub("ViT-|BiT-|EfficientNet-", "", cls.name_from_fields(fields) or "") or None

    @classmethod
    def usual_image_size(cls, fields):
        """Returns the image side to assume if neither a file nor the user gives it. `fields` are config fields."""
        return DEFAULT_IMAGE_SIZE

    @staticmethod
    def usual_preprocessing(image_size):
        """Returns the preprocessing to assume for images of this size, if the file does not determine it."""
        return Preprocessing()

    @classmethod
    def describe(cls, fields):
        """Describes the sizes of a model for error messages. `fields` are the values of its config."""
        text = ", ".join([*cls._parts(fields), f"{fields['num_classes']} classes"])
        return f"{cls.name_from_fields(fields)} ({text})" if cls.name_from_fields(fields) else text

    @classmethod
    def _parts(cls, fields):
        """Yields the texts that `describe` joins, except the number of classes."""
        return iter(())

    @staticmethod
    def training_options_for(variant):
        """Returns the nonzero dropout rates that a variant is trained with."""
        return {}

    def _set(self, name, value):
        object.__setattr__(self, name, value)

    def replace(self, **changes):
        """Returns a copy with changed fields. Derives dependent fields again; raises if a field is invalid."""
        fields = {field.name: field for field in dataclasses.fields(self)}
        values = {name: getattr(self, name) for name in fields}
        changed = {name for name, value in changes.items() if not np.array_equal(value, values.get(name))}
        derived = {name: fields[name].default for source, name in _FOLLOWS if source in changed and name in values}
        return arguments.record(type(self), {**values, **derived, **changes})

    def to_dict(self):
        """Returns the config as a dict that `json.dumps` accepts."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["preprocessing"] = dataclasses.asdict(self.preprocessing)
        for name in ("activation", "classifier_activation"):
            if name in values:
                values[name] = activations.serialize(values[name])
        return {"family": self.family, **_lists(values)}

    @classmethod
    def from_dict(cls, values):
        """Returns the config for a dict from `to_dict`. Raises ValueError if a field is unknown, missing or invalid."""
        if not isinstance(values, Mapping):
            raise arguments.invalid("config", f"a dict of the fields of {cls.__name__}", values)
        values = _without_old_names(values)
        family = values.pop("family", cls.family)
        families = {kind.family: kind for kind in (cls, *cls.__subclasses__()) if kind.family}
        if family not in families:
            raise ValueError(f"Expected `family` to be one of {', '.join(map(repr, families))}. Received: {family!r}")
        return arguments.record(families[family], values)


def _without_old_names(values):
    """Replaces the field names and values of version 0.2 in a config's dict by the current ones."""
    values = dict(values)
    old = {task: values.pop(task, False) for task in ("multi_label", "regression")}
    for task in [name for name, is_set in old.items() if is_set is True]:
        values.setdefault("task", task)
    if "pooling" in values and values["pooling"] is None:
        values["pooling"] = "none"
    return values


def _lists(value):
    """Converts the tuples in a value to lists, as in JSON."""
    if isinstance(value, dict):
        return {key: _lists(each) for key, each in value.items()}
    return [_lists(each) for each in value] if isinstance(value, (tuple, list)) else value


def find_normalization(model):
    """Returns the first layer that stores a `Preprocessing`, or None. Searches nested models too."""
    for layer in arguments.model(model).layers:
        # A nested model or a user's layer may have an unrelated `preprocessing` attribute.
        if isinstance(getattr(layer, "layers", None), (list, tuple)):
            if (found := find_normalization(layer)) is not None:
                return found
        elif isinstance(getattr(layer, "preprocessing", None), Preprocessing):
            return layer
    return None


def config_of(model: keras.Model) -> ModelConfig:
    """Returns the config of a model of this package. `model` may also extend or contain such a model.

    Args:
        model: A functional or Sequential `keras.Model`.

    Returns:
        A config, such as a `ViTConfig`. A new head does not change the config. If the model contains
        several models, the config is from the first one.

    Raises:
        ValueError: If no layer stores a config.

    Example:

    >>> backbone = keras_vit.ViTTi16(num_classes=0)
    >>> model = keras.Model(backbone.input, keras.layers.Dense(5)(backbone.output))
    >>> keras_vit.config_of(model).hidden_dim
    192
    """
    config = getattr(find_normalization(model), "config", None)
    if config is None:
        raise ValueError(
            "Expected a model from a builder of this package, or one that extends or contains such a model. Received: "
            f"model {model.name!r}, in which no layer stores a config. Its layers are "
            f"{', '.join(layer.name for layer in model.layers)}"
        )
    return config
