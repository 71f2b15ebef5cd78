"""The config of CoAtNet models, and the table of their variants. To add a variant, add a row."""

import dataclasses
import re
from typing import ClassVar

from keras_vit import arguments
from keras_vit.config import DEFAULT_IMAGE_SIZE, PADDINGS, ModelConfig, checked, stage_sizes
from keras_vit.images.interpolation import TABLE_METHODS

EXPANDED_FROM = ("output", "input")
DOWNSAMPLINGS = ("expansion", "depthwise", "pooling")
POOL_TYPES = ("max2", "max3", "avg2")
NORMS = ("layer", "batch")
ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu")
# The expansion ratio of MBConv and MLP.
EXPANSION = 4


def stage_widths(name, value):
    """Returns `value`, the channels of each stage, as a tuple; raises ValueError if it is no list of positive ints."""
    if not isinstance(value, (tuple, list)) or not value:
        raise arguments.invalid(name, "the number of channels of each stage, as in (96, 192, 384, 768)", value)
    return tuple(arguments.positive_int(name, width, arguments.LARGEST) for width in value)


def conv_depths(name, value):
    """Returns `value`, the MBConv blocks of each stage, as a tuple; raises ValueError if it is not a list of ints."""
    if not isinstance(value, (tuple, list)):
        raise arguments.invalid(name, "the number of MBConv blocks of each stage, as in (2, 3, 0, 0)", value)
    return tuple(arguments.non_negative_int(name, depth) for depth in value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoAtNetConfig(ModelConfig):
    """The config of a CoAtNet: all settings that change its outputs. `keras_vit.CoAtNet` has the same arguments.

    Args:
        depths: Ints, the number of blocks per stage.
        widths: Ints, the number of channels per stage.
        stem_widths: Ints, the channels of the two 3 x 3 convolutions before the first stage.
        conv_depths: Ints, the number of MBConv blocks at the start of each stage. None: all blocks of the first two
            stages, and no blocks of later stages.
        head_dim: Int, the width of an attention head.
        expanded_from: The number of channels that determines the inner width of a block: "output" (its output channels,
            as in the paper) or "input" (its input channels). The inner width of an MBConv is four times this number.
            The inner width of an attention is equal to this number.
        downsampling: The layer that halves the feature map in the branch of an MBConv: "expansion" (the first
            convolution, as in the paper), "depthwise" or "pooling" (an average of 2 x 2 before the first convolution).
        pool_type: The pooling that halves the feature map on shortcuts and before the attention: "max2", "max3"
            (windows of 3 x 3) or "avg2".
        padding: The padding of 3 x 3 convolutions and 3 x 3 poolings that halve the feature map: "same", as in
            TensorFlow, or "symmetric", as in PyTorch.
        activation: The activation of the MLPs: "gelu", "gelu_tanh", "silu" or "relu".
        conv_activation: The activation of the stem and of the MBConv blocks. The choices are as for `activation`.
        pre_norm_activation: Bool, whether an activation follows the first norm of an MBConv.
        conv_bias: Bool, whether the last convolution and the shortcut convolution of an MBConv have a bias.
        shortcut_bias: Bool, whether the projection on a transformer block's shortcut has a bias.
        se_ratio: Float. The width inside squeeze-and-excitation is `se_ratio` times the output channels of the MBConv
            block or, with `expanded_from="input"`, `se_ratio` times the inner channels.
        se_activation: The activation inside squeeze-and-excitation.
        se_before_norm: Bool, whether squeeze-and-excitation comes before the norm of the depthwise convolution.
        transformer_norm: "layer" or "batch", the kind of the norms in the transformer blocks and of the norm before the
            head.
        layer_scale_init: Float, the initial value of LayerScale in transformer blocks; None for no LayerScale.
        position_mlp_dim: Int, the hidden width of the MLP that computes the attention's position biases. None: a
            learned table contains the biases.
        position_interpolation: The method that resizes the position tables if the image size changes at run time or for
            `weights=`: "bilinear" (as in the paper) or "geometric" (as in timm).
        table_image_size: Int or (height, width), in pixels, only if `image_size` is (None, None). The position tables
            are stored for images of this size. None: the size in the weights, else 224.
        norm_after_pooling: Bool; True normalizes the pooled vector instead of the feature map.
        representation_size: Int, the width of a dense tanh layer before the head; None for no such layer.
        layer_norm_epsilon: Float, the epsilon of the norms in the transformer blocks and of the norm before the head.
        batch_norm_epsilon: Float, the epsilon of the norms in the stem and in the MBConv blocks.
        **others: As in `keras_vit.ViTConfig`.

    Raises:
        ValueError: If a value is out of range or conflicts with another value.

    Example:

    >>> config = keras_vit.CoAtNetConfig.from_variant("0")
    >>> config.depths, config.widths, config.grid(3)
    ((2, 3, 5, 2), (96, 192, 384, 768), (14, 14))
    """

    family: ClassVar[str] = "coatnet"
    sizes: ClassVar[tuple[str, ...]] = ("in_channels", "num_classes", "depths", "widths", "stem_widths", "head_dim")
    table_field: ClassVar[str | None] = "table_image_size"

    depths: tuple[int, ...] = checked(stage_sizes)
    widths: tuple[int, ...] = checked(stage_widths)
    stem_widths: tuple[int, int] = checked(arguments.pair, arguments.LARGEST)
    conv_depths: tuple[int, ...] | None = checked(conv_depths, optional=True, default=None)
    head_dim: int = checked(arguments.positive_int, arguments.LARGEST, default=32)
    expanded_from: str = checked(arguments.choice, EXPANDED_FROM, default="output")
    downsampling: str = checked(arguments.choice, DOWNSAMPLINGS, default="expansion")
    pool_type: str = checked(arguments.choice, POOL_TYPES, default="max2")
    padding: str = checked(arguments.choice, PADDINGS, default="same")
    activation: str = checked(arguments.choice, ACTIVATIONS, default="gelu")
    conv_activation: str = checked(arguments.choice, ACTIVATIONS, default="gelu")
    pre_norm_activation: bool = checked(arguments.boolean, default=False)
    conv_bias: bool = checked(arguments.boolean, default=True)
    shortcut_bias: bool = checked(arguments.boolean, default=True)
    se_ratio: float = checked(arguments.positive_number, default=0.25)
    se_activation: str = checked(arguments.choice, ACTIVATIONS, default="silu")
    se_before_norm: bool = checked(arguments.boolean, default=False)
    transformer_norm: str = checked(arguments.choice, NORMS, default="layer")
    layer_scale_init: float | None = checked(arguments.number, optional=True, default=None)
    position_mlp_dim: int | None = checked(arguments.positive_int, arguments.LARGEST, optional=True, default=None)
    position_interpolation: str = checked(arguments.choice, TABLE_METHODS, default="bilinear")
    table_image_size: tuple[int, int] | None = checked(arguments.pair, arguments.LARGEST, optional=True, default=None)
    norm_after_pooling: bool = checked(arguments.boolean, default=False)
    representation_size: int | None = checked(arguments.positive_int, arguments.LARGEST, optional=True, default=None)
    layer_norm_epsilon: float = checked(arguments.epsilon, default=1e-6)
    batch_norm_epsilon: float = checked(arguments.epsilon, default=1e-5)

    @classmethod
    def from_variant(cls, variant, **overrides):
        """Returns the config of a variant, such as "0" or "coatnet_0_rw"; `overrides` set other fields."""
        return super().from_variant(variant, **{"image_size": image_size_in_name(variant), **overrides})

    @staticmethod
    def variant_sizes(variant):
        """Returns the config fields that a variant determines, as a dict."""
        return VARIANTS[decode_coatnet(variant)]

    def __post_init__(self):
        super().__post_init__()
        stages = len(self.depths)
        for name in ("widths", "conv_depths"):
            value = getattr(self, name)
            if value is not None and len(value) != stages:
                raise arguments.invalid(name, f"a number for each of the {stages} stages of `depths`", value)
        usual = tuple(depth if i < 2 else 0 for i, depth in enumerate(self.depths))
        if self.conv_depths is not None and any(n > d for n, d in zip(self.conv_depths, self.depths, strict=True)):
            raise arguments.invalid("conv_depths", f"at most `depths`, {self.depths}", self.conv_depths)
        if self.conv_depths == usual:
            # Store the default as None, so that a copy with other `depths` gets the default of its own depths.
            self._set("conv_depths", None)
        for block in self.blocks:
            if not block.is_conv and block.attention_width % self.head_dim:
                expected = f"a divisor of the {block.attention_width} channels of the attention in {block.name}"
                raise arguments.invalid("head_dim", expected, self.head_dim)
        if self.table_image_size is not None and None not in self.image_size:
            expected = "None with images of a known size"
            raise arguments.invalid("table_image_size", expected, self.table_image_size)

    @property
    def blocks(self):
        """The sizes of all blocks, in order: a list of `Block`s."""
        inputs, found = self.stem_widths[1], []
        for s, (depth, width) in enumerate(zip(self.depths, self.widths, strict=True)):
            num_conv = (depth if s < 2 else 0) if self.conv_depths is None else self.conv_depths[s]
            for b in range(depth):
                expanded = width if self.expanded_from == "output" else inputs
                name = f"stage_{s + 1}_block_{b + 1:02d}"
                found.append(Block(name, s + 1, b < num_conv, width, expanded, 1 if b else 2))
                inputs = width
        return found

    @property
    def block_names(self):
        """The names of the blocks, in order."""
        return [block.name for block in self.blocks]

    @property
    def table_size(self):
        """The (height, width) of the images that the position tables are stored for."""
        if None not in self.image_size:
            return self.image_size
        return self.table_image_size or (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)

    def grid(self, stage):
        """Returns (rows, columns) of the feature map that the position tables of a stage (from 1) are stored for."""
        return table_grid(self.table_size, stage)


@dataclasses.dataclass(frozen=True)
class Block:
    """The sizes of a CoAtNet block, derived from a config."""

    name: str
    stage: int
    is_conv: bool
    width: int
    # In MBConv blocks, the width that the expansion ratio multiplies. In transformer blocks, the attention's width.
    attention_width: int
    strides: int


def table_grid(image_size, stage):
    """Returns (rows, columns) of a stage's feature map for images of (height, width). The first stage is number 1."""
    stride = 2 ** (stage + 1)
    return tuple(-(-side // stride) for side in image_size)


# The sizes are from arXiv 2106.04803, table 3: two stages of MBConv, then two of transformer blocks. The hidden layer
# of the head is from timm, because the parameter counts match table 4 only with this layer.
def _sizes(depths, widths, stem):
    return {"depths": depths, "widths": widths, "stem_widths": stem}


_BLOCKS_0, _BLOCKS_1, _BLOCKS_4 = (2, 3, 5, 2), (2, 6, 14, 2), (2, 12, 28, 2)
_WIDTHS_0, _WIDTHS_2, _WIDTHS_3 = (96, 192, 384, 768), (128, 256, 512, 1024), (192, 384, 768, 1536)
_WIDTHS_NANO = (64, 128, 256, 512)
_SIZES = {
    "0": _sizes(_BLOCKS_0, _WIDTHS_0, (64, 64)),
    "1": _sizes(_BLOCKS_1, _WIDTHS_0, (64, 64)),
    "2": _sizes(_BLOCKS_1, _WIDTHS_2, (128, 128)),
    "3": _sizes(_BLOCKS_1, _WIDTHS_3, (192, 192)),
    "4": _sizes(_BLOCKS_4, _WIDTHS_3, (192, 192)),
    "5": _sizes(_BLOCKS_4, (256, 512, 1280, 2048), (192, 192)),
}
_HEADS = {
    name: {"norm_after_pooling": True, "representation_size": size["widths"][-1]} for name, size in _SIZES.items()
}
# All CoAtNets of timm 1.0.31: the paper's sizes, and timm's own sizes (`rw`).
_TIMM = {"pool_type": "avg2", "padding": "symmetric", "position_interpolation": "geometric"}
_OWN = {**_TIMM, "expanded_from": "input", "conv_activation": "silu"}
_RW = {**_OWN, "pre_norm_activation": True, "conv_bias": False, "se_activation": "relu"}
_EARLY = {"se_before_norm": True, "shortcut_bias": False}
_DW, _POOL, _SILU, _SCALE = {"downsampling": "depthwise"}, {"downsampling": "pooling"}, {"se_activation": "silu"}, 1e-6
_SIZE_PICO = _sizes(_BLOCKS_0, _WIDTHS_NANO, (32, 64))
_SIZE_NANO = _sizes((3, 4, 6, 3), _WIDTHS_NANO, (32, 64))
_SIZE_0 = _sizes((2, 3, 7, 2), _WIDTHS_0, (32, 64))
_SIZE_1 = _sizes(_BLOCKS_1, _WIDTHS_0, (32, 64))
_SIZE_2 = _sizes(_BLOCKS_1, _WIDTHS_2, (64, 128))
_SIZE_3 = _sizes(_BLOCKS_1, _WIDTHS_3, (96, 192))
VARIANTS = {
    **{name: {**size, **_HEADS[name], "head_dim": 64 if name == "5" else 32} for name, size in _SIZES.items()},
    **{f"coatnet_{name}": {**size, **_HEADS[name], **_TIMM, **_DW} for name, size in _SIZES.items()},
    "coatnet_pico_rw": {**_SIZE_PICO, **_OWN, **_DW},
    "coatnet_nano_rw": {**_SIZE_NANO, **_OWN, **_POOL},
    "coatnet_0_rw": {**_SIZE_0, **_RW, **_EARLY, **_POOL},
    "coatnet_1_rw": {**_SIZE_1, **_RW, **_EARLY, **_DW},
    "coatnet_2_rw": {**_SIZE_2, **_RW, **_SILU, **_DW},
    "coatnet_3_rw": {**_SIZE_3, **_RW, **_SILU, **_DW, "layer_scale_init": _SCALE},
    "coatnet_bn_0_rw": {**_SIZE_0, **_RW, **_EARLY, **_DW, "transformer_norm": "batch"},
    "coatnet_rmlp_nano_rw": {**_SIZE_NANO, **_OWN, **_DW, "position_mlp_dim": 384},
    "coatnet_rmlp_0_rw": {**_SIZE_0, **_RW, **_DW, "position_mlp_dim": 512},
    "coatnet_rmlp_1_rw": {**_SIZE_1, **_RW, **_EARLY, **_POOL, "pool_type": "max3", "position_mlp_dim": 384},
    "coatnet_rmlp_1_rw2": {**_SIZE_1, **_RW, **_DW, "position_mlp_dim": 512},
    "coatnet_rmlp_2_rw": {**_SIZE_2, **_RW, **_SILU, **_DW, "layer_scale_init": _SCALE, "position_mlp_dim": 512},
    "coatnet_rmlp_3_rw": {**_SIZE_3, **_RW, **_SILU, **_DW, "layer_scale_init": _SCALE, "position_mlp_dim": 512},
    "coatnet_nano_cc": {**_SIZE_NANO, **_RW, **_POOL, "conv_depths": (3, 4, 1, 1)},
    # The small model of timm's tests.
    "test_coatnet": {**_sizes((1, 1, 2, 1), (32, 64, 96, 128), (16, 32)), **_OWN, **_POOL},
}


def decode_coatnet(variant):
    """Returns the key of a variant in `VARIANTS`.

    `variant` may be this key, timm's name with an image size, or a short name such as "0_rw".
    """
    if isinstance(variant, str):
        name = re.sub(r"(?<=\w)_\d{3}$", "", variant)
        for key in (variant, name, f"coatnet_{name}"):
            if key in VARIANTS:
                return key
    expected = f'one of {", ".join(VARIANTS)}, or timm\'s name, such as "coatnet_0_rw_224"'
    raise arguments.invalid("variant", expected, variant)


def image_size_in_name(variant):
    """Returns the image size at the end of timm's name, as in "coatnet_rmlp_2_rw_384", or 224."""
    match = re.search(r"_(\d{3})$", variant) if isinstance(variant, str) else None
    return int(match[1]) if match else DEFAULT_IMAGE_SIZE
