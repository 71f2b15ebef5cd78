"""How images become a model's input: one record, which the model's first layer carries and every room reads."""

import dataclasses
import math
import numbers
from collections.abc import Sequence

INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos3", "lanczos5", "area")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The resizing, cropping and scaling of images that a model was trained with.

    Args:
        mean: Float, or one float a channel: the mean of images scaled to [0, 1].
        std: Float, or one float a channel: the standard deviation of images scaled to [0, 1]. With the default, 0.5 for
            both, images of 0..255 become [-1, 1], as the official checkpoints expect.
        interpolation: How images are resized: "bilinear", "bicubic", "nearest", "lanczos3", "lanczos5" or "area".
        crop_fraction: Float in (0, 1]: the share of the shorter side that the evaluation's centre crop keeps.

    Raises:
        ValueError: If a constant is out of its range.

    Example:

    >>> keras_vit.Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)).interpolation
    'bilinear'
    """

    mean: float | tuple[float, ...] = 0.5
    std: float | tuple[float, ...] = 0.5
    interpolation: str = "bilinear"
    crop_fraction: float = 1.0

    def __post_init__(self):
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
        for name, value in (("mean", mean), ("std", std), ("crop_fraction", float(self.crop_fraction))):
            object.__setattr__(self, name, value)

    @property
    def antialias(self) -> bool:
        """Whether shrinking filters before: in any way but the official code's bilinear one."""
        return self.interpolation != "bilinear"


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


def _constants(name, value):
    values = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    if not values or not all(map(_is_number, values)):
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected a number, or one a channel. Received: {value!r}"
        )
    return tuple(map(float, values))
