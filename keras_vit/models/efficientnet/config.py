"""The config of EfficientNet models, and the tables of their stages and variants. To add a variant, add a row."""

import dataclasses
import itertools
import math
from typing import ClassVar, NamedTuple

from keras_vit import arguments
from keras_vit.config import MOST_LAYERS, PADDINGS, ModelConfig, Preprocessing, checked
from keras_vit.images.constants import IMAGENET_PREPROCESSING


class Stage(NamedTuple):
    """The blocks of a stage. `repeats` and `width` are the values of B0. The other fields are equal in all variants."""

    repeats: int
    width: int
    kernel_size: int
    strides: int
    expansion: int


class Scale(NamedTuple):
    """The sizes of a variant relative to B0, and the image size and dropout rate of its training."""

    width_factor: float
    depth_factor: float
    image_size: int
    dropout_rate: float


# The EfficientNet paper (arXiv 1905.11946), table 1.
STAGES = (
    Stage(1, 16, 3, 1, 1),
    Stage(2, 24, 3, 2, 6),
    Stage(2, 40, 5, 2, 6),
    Stage(3, 80, 3, 2, 6),
    Stage(3, 112, 5, 1, 6),
    Stage(4, 192, 5, 2, 6),
    Stage(1, 320, 3, 1, 6),
)
STEM_WIDTH, TOP_WIDTH = 32, 1280
# The scales of the official code; L2 is from Noisy Student (arXiv 1911.04252), table 7.
SCALES = {
    "B0": Scale(1.0, 1.0, 224, 0.2),
    "B1": Scale(1.0, 1.1, 240, 0.2),
    "B2": Scale(1.1, 1.2, 260, 0.3),
    "B3": Scale(1.2, 1.4, 300, 0.3),
    "B4": Scale(1.4, 1.8, 380, 0.4),
    "B5": Scale(1.6, 2.2, 456, 0.4),
    "B6": Scale(1.8, 2.6, 528, 0.5),
    "B7": Scale(2.0, 3.1, 600, 0.5),
    "B8": Scale(2.2, 3.6, 672, 0.5),
    "L2": Scale(4.3, 5.3, 800, 0.5),
}


def decode_efficientnet(variant):
    """Returns the Scale of a variant, such as "B0"; raises if it is unknown."""
    if not isinstance(variant, str) or variant not in SCALES:
        raise arguments.invalid("variant", f"one of {', '.join(map(repr, SCALES))}", variant)
    return SCALES[variant]


def scaled_widths(width_factor):
    """Returns the channels of stem, stages and top: B0's numbers times the factor, rounded to multiples of 8.

    A number that would be rounded down by more than 10% is rounded up.
    """

    def scaled(width):
        width *= width_factor
        rounded = max(8, int(width + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * width else rounded

    return tuple(map(scaled, (STEM_WIDTH, *(stage.width for stage in STAGES), TOP_WIDTH)))


def scaled_repeats(depth_factor):
    """Returns the number of blocks of each stage: B0's numbers times the factor, rounded up."""
    return tuple(math.ceil(depth_factor * stage.repeats) for stage in STAGES)


def official_preprocessing(image_size, **constants):
    """Returns the `Preprocessing` of the official code, in which the fields `constants` are replaced.

    The official code resizes images to 32 pixels more than `image_size`, and then crops the center.
    """
    side = min(arguments.image_size(image_size), key=lambda side: side or math.inf)
    crop = {} if side is None else {"crop_fraction": side / (side + 32)}
    # The official code resizes in TensorFlow, which does not antialias.
    return Preprocessing(**{**IMAGENET_PREPROCESSING, "antialias": False, **crop, **constants})


def efficientnet_name(widths, repeats):
    """Returns the name of the variant with these sizes, such as "B0", or None if there is no such variant."""
    sizes = tuple(widths), tuple(repeats)
    return next(
        (name for name, scale in SCALES.items() if sizes == (scaled_widths(scale[0]), scaled_repeats(scale[1]))), None
    )


def _ints(name, value, count, what, most=arguments.LARGEST):
    if not isinstance(value, (tuple, list)) or len(value) != count:
        raise arguments.invalid(name, f"{count} integers, the {what}", value)
    return tuple(arguments.positive_int(name, number, most) for number in value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EfficientNetConfig(ModelConfig):
    """The config of an EfficientNet: all settings that change its outputs.

    `keras_vit.EfficientNet` has the same arguments.

    Args:
        widths: Ints, the channels of the stem, of each of 7 stages and of the top.
        repeats: Ints, the number of blocks of each stage.
        padding: The padding of the strided convolutions: "same" (as in the official code, whose models are named
            `tf_efficientnet_*` in timm) or "symmetric" (as in timm's own models).
        batch_norm_epsilon: Float, the epsilon of all norms: 1e-3 in the official code, 1e-5 in timm's own models.
        **others: As in `keras_vit.ViTConfig`.

    Raises:
        ValueError: If a value is out of range.

    Example:

    >>> config = keras_vit.EfficientNetConfig.from_variant("B0")
    >>> config.widths, config.repeats
    ((32, 16, 24, 40, 80, 112, 192, 320, 1280), (1, 2, 2, 3, 3, 4, 1))
    """

    family: ClassVar[str] = "efficientnet"
    sizes: ClassVar[tuple[str, ...]] = ("in_channels", "num_classes", "widths", "repeats")

    widths: tuple[int, ...] = checked(
        _ints, len(STAGES) + 2, "channels of the stem, of each of 7 stages and of the top"
    )
    repeats: tuple[int, ...] = checked(_ints, len(STAGES), "numbers of blocks of each of 7 stages", MOST_LAYERS)
    padding: str = checked(arguments.choice, PADDINGS, default="same")
    batch_norm_epsilon: float = checked(arguments.epsilon, default=1e-3)

    usual_preprocessing = staticmethod(official_preprocessing)

    @classmethod
    def from_variant(cls, variant, **overrides):
        """Returns the config of a variant, such as "B0"; `overrides` set other fields."""
        image_size = overrides.get("image_size", decode_efficientnet(variant).image_size)
        channels = overrides.get("in_channels", cls.in_channels)
        usual = {"image_size": image_size, "preprocessing": official_preprocessing(image_size).for_channels(channels)}
        return super().from_variant(variant, **{**usual, **overrides})

    @staticmethod
    def variant_sizes(variant):
        """Returns the config fields that a variant determines, as a dict."""
        scale = decode_efficientnet(variant)
        return {"widths": scaled_widths(scale.width_factor), "repeats": scaled_repeats(scale.depth_factor)}

    @classmethod
    def usual_image_size(cls, fields):
        return SCALES[cls.variant_from_fields(fields) or "B0"].image_size

    @staticmethod
    def training_options_for(variant):
        """Returns the dropout rate that a variant is trained with."""
        return {"dropout_rate": decode_efficientnet(variant).dropout_rate}

    @classmethod
    def name_from_fields(cls, fields):
        name = efficientnet_name(fields["widths"] or (), fields["repeats"] or ())
        return name and f"EfficientNet-{name}"

    @property
    def block_names(self):
        """The names of the blocks, in order."""
        return [name for name, *_ in self.blocks()]

    def blocks(self):
        """Yields (name, Stage, output width, strides) of each block."""
        for number, (stage, width, repeats) in enumerate(zip(STAGES, self.widths[1:-1], self.repeats, strict=True), 1):
            strides = itertools.chain([stage.strides], itertools.repeat(1))
            for block, stride in zip(range(1, repeats + 1), strides, strict=False):
                yield f"stage_{number}_block_{block:02d}", stage, width, stride
