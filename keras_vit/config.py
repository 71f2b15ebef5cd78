"""The configs of ViT and BiT models, which each model stores in its first layer."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from keras_vit import arguments
from keras_vit.interpolation import POSITION_METHODS
from keras_vit.model_config import DEFAULT_IMAGE_SIZE, ModelConfig, activation_of, checked
from keras_vit.variants import decode_resnet, decode_variant

POSITION_EMBEDDINGS = ("learned", "learned2d", "relative", "sincos2d", "none")
POOLINGS = ("token", "gap", "token_gap", "map", None)
ROTARY_EMBEDDINGS = ("dinov3", "eva02", "axial")
# Whose epsilons a ResNet has in its standardized convolutions and norms.
RESNET_EPSILONS = ("official", "timm")
# Limits far above any model: blocks (or units of a stage), stages and width factor. A file beyond them is damaged.
MOST_LAYERS, MOST_STAGES, MOST_WIDE = 1024, 8, 64


def stage_sizes(name, value):
    """Returns `value` as a tuple of ints; raises if it is not the number of units per stage."""
    if not isinstance(value, (tuple, list)):
        raise arguments.invalid(name, "the number of units of each stage, as in (3, 4, 9)", value)
    if len(value) > MOST_STAGES:
        raise arguments.invalid(name, f"at most {MOST_STAGES} stages", value)
    return tuple(arguments.positive_int(name, num_units, MOST_LAYERS) for num_units in value)


def half_multiple(name, value):
    """Returns `value` as a float; raises if it is not a positive multiple of 0.5."""
    if arguments.positive_number(name, value) * 2 % 1 or value > MOST_WIDE:
        raise arguments.invalid(name, f"a multiple of 0.5, at most {MOST_WIDE}, since the norms have 32 groups", value)
    return float(value)


def total_stride(stages):
    """Returns the total stride of a ResNet: 4 in the root, 2 in each stage but the first."""
    return 4 * 2 ** max(len(stages) - 1, 0)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiTConfig(ModelConfig):
    """The config of a Big Transfer ResNet, as built by `keras_vit.BiT`.

    Args:
        stages: Ints, the number of units per stage.
        width_factor: Float, a positive multiple of 0.5: the width relative to a standard ResNet.
        pool_padding: "lowest" or "zeros", as in `keras_vit.BiT`.
        resnet_epsilons: "official" or "timm", as in `keras_vit.BiT`.
        **others: As in `keras_vit.BiT`.

    Raises:
        ValueError: If a value is out of range.

    Example:

    >>> keras_vit.BiTConfig.from_variant("R50x1").stages
    (3, 4, 6, 3)
    """

    family: ClassVar[str] = "bit"

    stages: tuple[int, ...] = checked(stage_sizes)
    width_factor: float = checked(half_multiple)
    pool_padding: str = checked(arguments.one_of, ("lowest", "zeros"), default="lowest")
    resnet_epsilons: str = checked(arguments.one_of, RESNET_EPSILONS, default="official")

    @classmethod
    def from_variant(cls, variant, **overrides):
        """Returns the config of a variant, such as "R50x1", like `ViTConfig.from_variant`."""
        stages, width_factor = decode_resnet(variant)
        return arguments.record(cls, {"stages": stages, "width_factor": width_factor, **overrides})

    @property
    def block_names(self):
        """The names of the residual units, in order."""
        return [f"stage_{s}_unit_{u:02d}" for s, units in enumerate(self.stages, 1) for u in range(1, units + 1)]
