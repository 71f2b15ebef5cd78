"""The preprocessing settings, which a model stores in its first layer."""

import dataclasses
from collections.abc import Mapping

from keras_vit import arguments

INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos3", "lanczos5", "area")
# Beyond these, float32 could not scale images.
SMALLEST, LARGEST = 1e-6, 1e6
# The only value these filters allow.
_ANTIALIAS = {"nearest": False, "area": True}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The resizing, cropping and scaling that a model expects of its images.

    Args:
        value_range: (low, high), to which pixels of 0 and 255 are scaled before the mean is subtracted.
        mean: Float, or one per channel, in the units of `value_range`.
        std: Float, or one per channel, likewise. The default maps images of 0..255 to [-1, 1], as the official
            checkpoints expect.
        interpolation: "bilinear", "bicubic", "nearest", "lanczos3", "lanczos5" or "area".
        antialias: Bool. True filters when shrinking and rounds to integers, as Pillow does; False does neither, as in
            the official code. None: False for "bilinear" and "nearest", else True.
        crop_fraction: Float in (0, 1], the share of a side that the centre crop keeps. Images are first resized to
            `floor(size / crop_fraction)`.
        resize_mode: "squash" resizes to that size regardless of the aspect ratio; "crop" keeps the aspect ratio and
            matches the shorter side; "pad" matches the longer side and pads with the mean. The centre is then cropped.
            None: "squash" if `crop_fraction` is 1, else "crop".
        crop_rounding: "even" or "down", for a crop whose corner falls on half a pixel: torchvision and timm round it to
            the even pixel, transformers rounds it down.

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
        if len(value_range) != 2 or value_range[1] - value_range[0] < SMALLEST:
            raise arguments.invalid("value_range", "(low, high), two numbers", self.value_range)
        if min(std) < SMALLEST:
            raise arguments.invalid("std", f"positive numbers of at least {SMALLEST:g}", self.std)
        arguments.one_of("interpolation", self.interpolation, INTERPOLATIONS)
        arguments.one_of("crop_rounding", self.crop_rounding, ("even", "down"))
        if not arguments.is_number(self.crop_fraction) or not 0 < self.crop_fraction <= 1:
            raise arguments.invalid("crop_fraction", "a number in (0, 1]", self.crop_fraction)
        arguments.optional(arguments.boolean, "antialias", self.antialias)
        only = _ANTIALIAS.get(self.interpolation)
        if None not in (only, self.antialias) and self.antialias != only:
            expected = f"None or {only} with interpolation={self.interpolation!r}"
            raise arguments.invalid("antialias", expected, self.antialias)
        arguments.one_of("resize_mode", self.resize_mode, ("crop", "squash", "pad", None))
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
        """Returns a copy with changed values; `antialias` and `resize_mode` follow them if at their default."""
        usual = {}
        if self.antialias == self._usual_antialias() or changes.get("interpolation") in _ANTIALIAS:
            usual["antialias"] = None
        if self.resize_mode == self._usual_mode():
            usual["resize_mode"] = None
        return dataclasses.replace(self, **{**usual, **changes})

    def check_channels(self, channels):
        """Raises unless `mean` and `std` each hold 1 or `channels` values."""
        for name in ("mean", "std"):
            constants = getattr(self, name)
            if len(constants) not in (1, channels):
                raise ValueError(
                    f"Expected `{name}` to hold one number, or one for each of the images' {channels} channels. "
                    f"Received: {constants}"
                )

    def for_channels(self, channels) -> "Preprocessing":
        """Returns a copy for a number of channels, averaging `mean` and `std` if they hold another number of values."""
        constants = {"mean": self.mean, "std": self.std}
        averaged = {name: sum(c) / len(c) for name, c in constants.items() if len(c) not in (1, channels)}
        return dataclasses.replace(self, **averaged)

    @property
    def offset_and_scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(offset, scale) for images x of 0..255, one or per channel: `(x - offset) / scale`."""
        low, high = self.value_range
        levels = 255 / (high - low)
        return tuple(levels * (value - low) for value in self.mean), tuple(levels * value for value in self.std)


def preprocessing_record(value):
    """Returns a `Preprocessing`, built from its fields if `value` is a dict."""
    if isinstance(value, Mapping):
        return arguments.record(Preprocessing, value)
    if not isinstance(value, Preprocessing):
        raise arguments.invalid("preprocessing", "a keras_vit.Preprocessing", value)
    return value


def carrier_of(model):
    """Returns the layer, also in nested models, that stores the `Preprocessing`, or None."""
    for layer in model.layers:
        # A nested model or a user's layer may have an unrelated `preprocessing` attribute.
        if isinstance(getattr(layer, "layers", None), (list, tuple)):
            if (found := carrier_of(layer)) is not None:
                return found
        elif isinstance(getattr(layer, "preprocessing", None), Preprocessing):
            return layer
    return None


def _numbers(name, value):
    """Returns a number up to 1e6, or a list, tuple or array of them, as a tuple of floats."""
    values = value.tolist() if hasattr(value, "tolist") else value
    values = values if isinstance(values, (tuple, list)) else (values,)
    if not values or not all(arguments.is_number(number) and abs(number) <= LARGEST for number in values):
        raise arguments.invalid(name, f"a number up to {LARGEST:g}, or one per channel", value)
    return tuple(map(float, values))
