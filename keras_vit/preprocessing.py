"""How images become a model's input: one record, which the model's first layer carries and every room reads."""

import dataclasses
import math
import numbers
from collections.abc import Sequence

INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos3", "lanczos5", "area")
RESIZE_MODES = ("crop", "squash", "pad")
# What these two do is the same by nature, whatever else is asked.
_ANTIALIAS = {"nearest": False, "area": True}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The resizing, cropping and scaling of images that a model was trained with.

    How it is carried out is said in one place, `keras_vit.evaluation_transform`.

    Args:
        value_range: (low, high): what pixels of 0 and 255 become before the mean is taken off.
        mean: Float, or one float a channel: the mean of images scaled to `value_range`.
        std: Float, or one float a channel: their standard deviation. With the default, 0.5 for both, images of 0..255
            become [-1, 1], as the official checkpoints expect.
        interpolation: How images are resized: "bilinear", "bicubic", "nearest", "lanczos3", "lanczos5" or "area".
        antialias: Bool. True filters before shrinking and rounds to whole numbers, as Pillow and the code that takes it
            do; False does neither, as the official code. None: True unless bilinear or nearest.
        crop_fraction: Float in (0, 1]: the share of a side that the evaluation's centre crop keeps. Images are resized
            for a size of `floor(size / crop_fraction)`.
        resize_mode: "squash" resizes the whole image to that size, whatever its shape; "crop" keeps its shape and
            resizes until the shorter side fits; "pad" until the longer one does, with the mean around. Then the centre
            is cut out. None: "squash" with a `crop_fraction` of 1, else "crop".

    Raises:
        ValueError: If a constant is out of its range.

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

    def __post_init__(self):
        value_range = _range(self.value_range)
        mean, std = _constants("mean", self.mean), _constants("std", self.std)
        if min(std) <= 0:
            raise ValueError(
                f"Invalid value received for argument `std`. Expected positive numbers. Received: {self.std!r}"
            )
        if self.interpolation not in INTERPOLATIONS:
            raise ValueError(
                "Invalid value received for argument `interpolation`. Expected one of "
                f"{', '.join(map(repr, INTERPOLATIONS))}. Received: {self.interpolation!r}"
            )
        if not _is_number(self.crop_fraction) or not 0 < self.crop_fraction <= 1:
            raise ValueError(
                "Invalid value received for argument `crop_fraction`. Expected a number in (0, 1]. "
                f"Received: {self.crop_fraction!r}"
            )
        natural = _ANTIALIAS.get(self.interpolation)
        if not isinstance(self.antialias, (bool, type(None))):
            raise ValueError(
                "Invalid value received for argument `antialias`. Expected True, False or None. "
                f"Received: {self.antialias!r}"
            )
        if None not in (natural, self.antialias) and self.antialias != natural:
            raise ValueError(
                f"Invalid value received for argument `antialias`. Expected None or {natural} with "
                f"interpolation={self.interpolation!r}. Received: {self.antialias!r}"
            )
        if self.resize_mode not in (None, *RESIZE_MODES):
            raise ValueError(
                f"Invalid value received for argument `resize_mode`. Expected {', '.join(map(repr, RESIZE_MODES))} or "
                f"None. Received: {self.resize_mode!r}"
            )
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
        """A copy with other values; where `antialias` or `resize_mode` is the usual one, it follows them."""
        usual = {}
        if self.antialias == self._usual_antialias() or changes.get("interpolation") in _ANTIALIAS:
            usual["antialias"] = None
        if self.resize_mode == self._usual_mode():
            usual["resize_mode"] = None
        return dataclasses.replace(self, **{**usual, **changes})

    def check_channels(self, channels):
        """Raises if the constants are neither single numbers nor one for each channel."""
        for name in ("mean", "std"):
            constants = getattr(self, name)
            if len(constants) not in (1, channels):
                raise ValueError(
                    f"Expected `{name}` to hold one number, or one for each of the images' {channels} channels. "
                    f"Received: {constants}"
                )

    def for_channels(self, channels) -> "Preprocessing":
        """The constants for images of another number of channels: the mean of all channels for each."""
        constants = {"mean": self.mean, "std": self.std}
        averaged = {name: sum(c) / len(c) for name, c in constants.items() if len(c) not in (1, channels)}
        return dataclasses.replace(self, **averaged)

    @property
    def offset_and_scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What takes images x of 0..255 to the model's as `(x - offset) / scale`, one number or one a channel each."""
        low, high = self.value_range
        levels = 255 / (high - low)
        return tuple(levels * (value - low) for value in self.mean), tuple(levels * value for value in self.std)


def carrier_of(model):
    """The layer of a model, or of a model within it, that carries the preprocessing, as `normalization` does.

    Args:
        model: A `keras.Model`.

    Returns:
        The layer; None where there is none. Its `preprocessing` is a `Preprocessing`, and its `apply` says whether it
        scales the images itself.
    """
    for layer in model.layers:
        # A list in models, which may tell their preprocessing too; a layer of a user's own may call anything so.
        if isinstance(getattr(layer, "layers", None), (list, tuple)):
            if (found := carrier_of(layer)) is not None:
                return found
        elif isinstance(getattr(layer, "preprocessing", None), Preprocessing):
            return layer
    return None


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _range(value):
    try:
        values = () if isinstance(value, str) else tuple(value)
    except TypeError:
        values = ()
    if len(values) != 2 or not all(map(_is_number, values)) or values[0] >= values[1]:
        raise ValueError(
            f"Invalid value received for argument `value_range`. Expected (low, high), two numbers. Received: {value!r}"
        )
    return tuple(map(float, values))


def _constants(name, value):
    value = value.tolist() if hasattr(value, "tolist") else value
    values = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    if not values or not all(map(_is_number, values)):
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected a number, or one a channel. Received: {value!r}"
        )
    return tuple(map(float, values))
