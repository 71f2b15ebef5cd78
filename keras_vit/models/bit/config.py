"""The config of BiT models and of the ResNets of hybrids, and the table of their depths."""

import dataclasses
import re
from typing import ClassVar

from keras_vit import arguments
from keras_vit.config import ModelConfig, checked, stage_sizes

# The code bases whose epsilons a ResNet may use in its standardized convolutions and norms.
RESNET_EPSILONS = ("official", "timm")
# The largest width factor. No published model is near it, so a file with a larger factor is damaged.
MAX_WIDTH_FACTOR = 64
# The width of a standard ResNet's first convolution.
ROOT_WIDTH = 64

# Units per stage by depth, from Deep Residual Learning (arXiv 1512.03385), table 1; depth 200 is from Identity Mappings
# in Deep Residual Networks (arXiv 1603.05027).
RESNETS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}


def half_multiple(name, value):
    """Returns `value` as a float; raises if it is not a positive multiple of 0.5, or is above `MAX_WIDTH_FACTOR`."""
    if arguments.positive_number(name, value) * 2 % 1 or value > MAX_WIDTH_FACTOR:
        raise arguments.invalid(
            name, f"a multiple of 0.5 (so that the norms can have 32 groups), at most {MAX_WIDTH_FACTOR}", value
        )
    return float(value)


def total_stride(stages):
    """Returns the total stride of a ResNet: 4 in the root, 2 in each stage but the first."""
    return 4 * 2 ** max(len(stages) - 1, 0)


def parts_of_resnet(fields):
    """Yields a description of the ResNet in a dict of config fields. Yields nothing if there is no ResNet."""
    if fields["stages"] is not None:
        yield f"a ResNet of stages {fields['stages']}, width factor {fields['width_factor']:g}"


def decode_resnet(variant):
    """Parses a variant such as "R50x1" into (units per stage, width factor); raises if the variant is unknown."""
    match = re.fullmatch(r"R([1-9]\d*)x([1-9]\d*)", variant) if isinstance(variant, str) else None
    if match is None or int(match[1]) not in RESNETS:
        depths = ", ".join(map(str, RESNETS))
        raise arguments.invalid("variant", f'"R", a depth ({depths}), "x" and a width factor, as in "R50x1"', variant)
    return RESNETS[int(match[1])], int(match[2])


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiTConfig(ModelConfig):
    """The config of a Big Transfer ResNet, as built by `keras_vit.BiT`.

    Args:
        stages: Ints, the number of units per stage.
        width_factor: Float, a positive multiple of 0.5: the width relative to a standard ResNet.
        pool_padding: Padding of the max pooling: "lowest" (the later Flax code) or "zeros" (timm, transformers and the
            code published with the weights).
        resnet_epsilons: The epsilons of the convolutions and norms: "official", or "timm" for the epsilons of timm and
            transformers.
        **others: As in `keras_vit.ViTConfig`.

    Raises:
        ValueError: If a value is out of range.

    Example:

    >>> keras_vit.BiTConfig.from_variant("R50x1").stages
    (3, 4, 6, 3)
    """

    family: ClassVar[str] = "bit"
    sizes: ClassVar[tuple[str, ...]] = ("in_channels", "num_classes", "stages", "width_factor")

    stages: tuple[int, ...] = checked(stage_sizes, 1)
    width_factor: float = checked(half_multiple)
    pool_padding: str = checked(arguments.choice, ("lowest", "zeros"), default="lowest")
    resnet_epsilons: str = checked(arguments.choice, RESNET_EPSILONS, default="official")

    @staticmethod
    def variant_sizes(variant):
        """Returns the config fields that a variant determines, as a dict."""
        return dict(zip(("stages", "width_factor"), decode_resnet(variant), strict=True))

    @classmethod
    def name_from_fields(cls, fields):
        depth = next((depth for depth, units in RESNETS.items() if units == fields["stages"]), None)
        return None if depth is None else f"BiT-R{depth}x{fields['width_factor']:g}"

    @classmethod
    def _parts(cls, fields):
        return parts_of_resnet(fields)

    @property
    def block_names(self):
        """The names of the residual units, in order."""
        return [f"stage_{s}_unit_{u:02d}" for s, units in enumerate(self.stages, 1) for u in range(1, units + 1)]
