"""The config of Vision Transformers and hybrids, and the table of their sizes. To add a size, add a row."""

import dataclasses
import re
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from keras_vit import arguments
from keras_vit.config import DEFAULT_IMAGE_SIZE, MOST_LAYERS, ModelConfig, activation_of, checked, stage_sizes
from keras_vit.images.interpolation import POSITION_METHODS
from keras_vit.models.bit.config import RESNET_EPSILONS, RESNETS, half_multiple, total_stride

POSITION_EMBEDDINGS = ("learned", "learned2d", "relative", "sincos2d", "none")
POOLINGS = ("token", "gap", "token_gap", "map", None)
ROTARY_EMBEDDINGS = ("dinov3", "eva02", "axial")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(ModelConfig):
    """The config of a Vision Transformer or hybrid: the arguments of `keras_vit.ViT` that determine its outputs.

    Args:
        patch_size: Int or (height, width), in pixels; for hybrids, in pixels of the feature map.
        hidden_dim: Int.
        num_layers: Int.
        num_heads: Int.
        mlp_dim: Int.
        **others: As in `keras_vit.ViT`. Any number for `layer_scale_init` means that residual branches are scaled.

    Raises:
        ValueError: If a value is out of range or conflicts with another.

    Example:

    >>> config = keras_vit.ViTConfig.from_variant("B/16", num_classes=10)
    >>> config.hidden_dim, config.grid, config == keras_vit.ViTConfig.from_dict(config.to_dict())
    (768, (14, 14), True)
    """

    family: ClassVar[str] = "vit"

    patch_size: int | tuple[int, int] = checked(arguments.pair, arguments.LARGEST)
    hidden_dim: int = checked(arguments.positive_int, arguments.LARGEST)
    num_layers: int = checked(arguments.positive_int, MOST_LAYERS)
    num_heads: int = checked(arguments.positive_int, arguments.LARGEST)
    mlp_dim: int = checked(arguments.positive_int, arguments.LARGEST)
    head_dim: int | None = checked(arguments.positive_int, optional=True, default=None)
    stages: tuple[int, ...] | None = checked(stage_sizes, optional=True, default=None)
    width_factor: float = checked(half_multiple, default=1.0)
    resnet_epsilons: str = checked(arguments.one_of, RESNET_EPSILONS, default="official")
    pooling: str | None = checked(arguments.one_of, POOLINGS, default="token")
    position_embedding: str = checked(arguments.one_of, POSITION_EMBEDDINGS, default="learned")
    position_interpolation: str = checked(arguments.one_of, POSITION_METHODS, default="linear")
    grid_size: tuple[int, int] | None = checked(arguments.pair, arguments.LARGEST, optional=True, default=None)
    class_token: bool | None = checked(arguments.boolean, optional=True, default=None)
    class_token_position: bool = checked(arguments.boolean, default=True)
    distillation_token: bool = checked(arguments.boolean, default=False)
    distillation_head: bool = checked(arguments.boolean, default=True)
    return_both_heads: bool = checked(arguments.boolean, default=False)
    num_registers: int = checked(arguments.non_negative_int, arguments.LARGEST, default=0)
    rotary_embedding: str | None = checked(arguments.one_of, ROTARY_EMBEDDINGS, optional=True, default=None)
    rotary_grid: tuple[int, int] | None = checked(arguments.pair, arguments.LARGEST, optional=True, default=None)
    patch_bias: bool = checked(arguments.boolean, default=True)
    norm_before_blocks: bool = checked(arguments.boolean, default=False)
    norm_after_pooling: bool = checked(arguments.boolean, default=False)
    projection_dim: int | None = checked(arguments.positive_int, arguments.LARGEST, optional=True, default=None)
    representation_size: int | None = checked(arguments.positive_int, arguments.LARGEST, optional=True, default=None)
    layer_scale_init: float | None = checked(arguments.number, optional=True, default=None)
    qk_norm: bool = checked(arguments.boolean, default=False)
    qkv_bias: bool = checked(arguments.boolean, default=True)
    key_bias: bool = checked(arguments.boolean, default=True)
    attention_norm: bool = checked(arguments.boolean, default=False)
    gated_mlp: bool = checked(arguments.boolean, default=False)
    mlp_norm: bool = checked(arguments.boolean, default=False)
    activation: str | Callable = checked(activation_of, default="gelu_tanh")  # noqa: RUF009
    layer_norm_epsilon: float = checked(arguments.epsilon, default=1e-6)

    @classmethod
    def from_variant(cls, variant, **overrides):
        """Returns the config of a variant, such as "B/16" or "R50+B/16"; `overrides` set other fields."""
        size, patch_size, stages = decode_variant(variant)
        return arguments.record(cls, {**size._asdict(), "patch_size": patch_size, "stages": stages, **overrides})

    def __post_init__(self):
        super().__post_init__()
        if self.class_token is None:
            self._set("class_token", self.pooling in ("token", "token_gap", None))
        if not self.qkv_bias:
            self._set("key_bias", False)
        if not self.distillation_token:
            self._set("distillation_head", True)
        self._check_head_dim()
        standard = self.stages is not None or self.width_factor == 1
        self._require(standard, "width_factor=1 without a ResNet", "width_factor")
        standard = self.stages is not None or self.resnet_epsilons == "official"
        self._require(standard, 'resnet_epsilons="official" without a ResNet', "resnet_epsilons")
        known_size = "grid_size=None with images of a known size"
        self._require(self.grid_size is None or self.any_size, known_size, "grid_size", "image_size")
        # Raises if the images are smaller than a patch.
        _ = self.grid
        self._check_tokens()

    def _require(self, holds, expected, *names):
        """Raises a ValueError that tells the values of the fields `names`, unless `holds`."""
        if not holds:
            received = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            raise ValueError(f"Expected {expected}. Received: {received}")

    def _check_head_dim(self):
        width, remainder = divmod(self.hidden_dim, self.num_heads)
        self._require(width, "at least as many channels as heads", "hidden_dim", "num_heads")
        expected = f"head_dim={width}, hidden_dim // num_heads, or a `num_heads` that divides `hidden_dim`"
        holds = self.head_dim == width or (self.head_dim is None and not remainder)
        self._require(holds, expected, "hidden_dim", "num_heads", "head_dim")
        # None if it follows from the other fields, so that copies with other values derive it again.
        self._set("head_dim", width if remainder else None)

        self._check_rotary()

    def _check_rotary(self):
        width = self.head_dim or self.hidden_dim // self.num_heads
        holds = self.rotary_embedding is None or width % 4 == 0
        expected = "heads of a multiple of 4 channels with `rotary_embedding`"
        self._require(holds, expected, "rotary_embedding", "hidden_dim", "num_heads")
        expected = '`rotary_grid` only with rotary_embedding="eva02" or "axial"'
        scales = self.rotary_grid is None or self.rotary_embedding in ("eva02", "axial")
        self._require(scales, expected, "rotary_grid", "rotary_embedding")

    def _check_tokens(self):
        has_token = self.pooling not in ("token", "token_gap") or self.class_token
        self._require(has_token, f"a class token with pooling={self.pooling!r}", "class_token")
        pooled = self.pooling is not None or self.projection_dim is None
        self._require(pooled, "no projection_dim with pooling=None", "projection_dim")
        without = self.representation_size is None and self.projection_dim is None and not self.norm_after_pooling
        plain = self.pooling == "token" and without
        expected = (
            'pooling="token", no representation_size, no projection_dim and norm_after_pooling=False with '
            "distillation_token=True and its head"
        )
        names = ("pooling", "representation_size", "projection_dim", "norm_after_pooling")
        self._require(plain or not self.has_distillation_head, expected, *names)
        has_both = self.has_distillation_head and self.num_classes
        expected = "distillation_token=True, with its head, and num_classes above 0 with return_both_heads=True"
        names = ("distillation_token", "distillation_head", "num_classes")
        self._require(has_both or not self.return_both_heads, expected, *names)
        normed = not self.norm_after_pooling or self.pooling in ("token", "gap")
        self._require(normed, 'pooling="token" or "gap" with norm_after_pooling=True', "pooling")

    @property
    def block_names(self):
        """The names of the transformer blocks, in order."""
        return [f"block_{i:02d}" for i in range(self.num_layers)]

    @property
    def any_size(self):
        """Whether the model takes images of any size."""
        return self.image_size == (None, None)

    @property
    def stride(self):
        """The stride of the ResNet below the patches; 1 without one."""
        return 1 if self.stages is None else total_stride(self.stages)

    @property
    def grid(self):
        """(rows, columns) of patches; if the model takes any size, of its position table."""
        if self.grid_size is not None:
            return self.grid_size
        image_size = (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE) if self.any_size else self.image_size
        return arguments.grid_size(image_size, self.patch_size, self.stride)

    @property
    def has_positions_in_blocks(self):
        """Whether each block needs all patches in order, for relative or rotary positions."""
        return self.position_embedding == "relative" or self.rotary_embedding is not None

    @property
    def has_distillation_head(self):
        """Whether the distillation token is pooled by itself, with its own head if num_classes > 0."""
        return self.distillation_token and self.distillation_head

    @property
    def num_prefix_tokens(self):
        """The number of class, distillation and register tokens before the patches."""
        return self.num_positioned_tokens + self.num_registers

    @property
    def num_positioned_tokens(self):
        """The number of prefix tokens that may have a position embedding: all but the registers."""
        return int(self.class_token) + int(self.distillation_token)


class Size(NamedTuple):
    """The depth and widths of an encoder, and whether its MLPs are gated."""

    hidden_dim: int
    num_layers: int
    mlp_dim: int
    num_heads: int
    gated_mlp: bool = False


class Stem(NamedTuple):
    """The ResNet of a hybrid, and the patch size on its feature map."""

    stages: tuple[int, ...]
    patch_size: int


class Variant(NamedTuple):
    """The sizes of a variant; `stages` is None without a ResNet below the patches."""

    size: Size
    patch_size: int
    stages: tuple[int, ...] | None


# Ti and S: DeiT (arXiv 2012.12877), table 1. B, L, H: the ViT paper (arXiv 2010.11929), table 1. g, G: Scaling Vision
# Transformers (arXiv 2106.04560), table 2. SO400M: Getting ViT in Shape (arXiv 2305.13035), as SigLIP uses it. g-opt:
# SigLIP 2 (arXiv 2502.14786). S+, H+, 7B: DINOv3 (arXiv 2508.10104). DINOv2G: DINOv2's g (arXiv 2304.07193), table 17.
# EVA02...: EVA-02 (arXiv 2303.11331). Where papers leave out MLP widths, they are those of their codes.
SIZES = {
    "Ti": Size(192, 12, 768, 3),
    "S": Size(384, 12, 1536, 6),
    "B": Size(768, 12, 3072, 12),
    "L": Size(1024, 24, 4096, 16),
    "H": Size(1280, 32, 5120, 16),
    "g": Size(1408, 40, 6144, 16),
    "G": Size(1664, 48, 8192, 16),
    "SO400M": Size(1152, 27, 4304, 16),
    "g-opt": Size(1536, 40, 6144, 16),
    "S+": Size(384, 12, 1536, 6, gated_mlp=True),
    "H+": Size(1280, 32, 5120, 20, gated_mlp=True),
    "7B": Size(4096, 40, 8192, 32, gated_mlp=True),
    "DINOv2G": Size(1536, 40, 4096, 24, gated_mlp=True),
    "EVA02Ti": Size(192, 12, 512, 3, gated_mlp=True),
    "EVA02S": Size(384, 12, 1024, 6, gated_mlp=True),
    "EVA02B": Size(768, 12, 2048, 12, gated_mlp=True),
    "EVA02L": Size(1024, 24, 2730, 16, gated_mlp=True),
}

# By name and the number after the slash: the ViT paper, section 4.1, and How to train your ViT? (arXiv 2106.10270),
# table 2.
STEMS = {
    ("R", 16): Stem((), 8),
    ("R26", 32): Stem((2, 2, 2, 2), 1),
    ("R50", 16): Stem((3, 4, 9), 1),
    ("R50", 32): Stem((3, 4, 6, 3), 1),
}

# The sizes as other packages spell them, for an error.
_WORDS = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H", "giant": "g"}


def decode_variant(variant):
    """Parses "B/16" or the hybrid "R50+B/16" into a Variant; raises if it is unknown."""
    match = re.fullmatch(r"(?:(\w+)\+)?([\w-]+\+?)/([1-9]\d*)", variant) if isinstance(variant, str) else None
    if match is not None and match[2] in SIZES:
        size, number = SIZES[match[2]], int(match[3])
        if match[1] is None:
            return Variant(size, number, None)
        if (match[1], number) in STEMS:
            stem = STEMS[match[1], number]
            return Variant(size, stem.patch_size, stem.stages)
    hybrids = ", ".join(f"{name}+.../{number}" for name, number in STEMS)
    expected = f'a size of {", ".join(SIZES)}, a slash and a patch size in pixels, as in "B/16", or a hybrid, as in '
    error = arguments.invalid("variant", f'{expected}"R50+B/16", of {hybrids}', variant)
    raise ValueError(f"{error}{_meant(variant)}")


def _meant(variant):
    """Returns the end of an error that names the variant which is spelled like this elsewhere."""
    if not isinstance(variant, str):
        return ""
    plain = re.sub(r"vit|deit|patch|(?<=\d)[_-]\d{3}$", "", variant.lower())
    plain = re.sub("|".join(_WORDS), lambda word: _WORDS[word[0]], plain)
    known = [f"{size}/{patch}" for size in SIZES for patch in (8, 14, 16, 32)]
    known += [f"{name}+{size}/{number}" for name, number in STEMS for size in SIZES]
    return arguments.nearest(plain, known)


def name_of(architecture):
    """Returns the name of a config's sizes, such as "ViT-B/16", "R50+ViT-B/16" or "BiT-R50x1", or None."""
    stages = architecture.stages
    if not architecture.num_layers:
        depth = next((depth for depth, units in RESNETS.items() if units == stages), None)
        return None if depth is None else f"BiT-R{depth}x{architecture.width_factor:g}"
    sizes = (architecture.hidden_dim, architecture.num_layers, architecture.mlp_dim)
    gated = getattr(architecture, "gated_mlp", None)
    size = next((name for name, row in SIZES.items() if row[:3] == sizes and gated in (None, row.gated_mlp)), None)
    if size is None or architecture.patch_size is None:
        return None
    height, width = architecture.patch_size
    patch = f"{height}" if height == width else f"{height}x{width}"
    if stages is None:
        return f"ViT-{size}/{patch}"
    for (stem, number), row in STEMS.items():
        if row == Stem(stages, height) and height == width and architecture.width_factor == 1:
            return f"{stem}+ViT-{size}/{number}"
    return None


def num_heads_of(hidden_dim, num_layers, mlp_dim, gated_mlp=None):
    """Returns the number of heads of the sizes with these dimensions, or None if there is none, or they differ."""
    rows = [row for row in SIZES.values() if row[:3] == (hidden_dim, num_layers, mlp_dim)]
    numbers = {row.num_heads for row in rows if gated_mlp in (None, row.gated_mlp)}
    return numbers.pop() if len(numbers) == 1 else None
