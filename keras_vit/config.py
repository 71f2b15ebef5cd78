"""The configs of ViT and BiT models, which each model stores in its first layer."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from keras_vit import arguments
from keras_vit.interpolation import POSITION_METHODS
from keras_vit.model_config import DEFAULT_IMAGE_SIZE, ModelConfig, activation_of, checked
from keras_vit.variants import decode_resnet, decode_variant

POSITION_EMBEDDINGS = ("learned", "learned2d", "relative", "sincos2d", "none")
POOLINGS = ("token", "gap", "map", None)


def stage_sizes(name, value):
    """Returns `value` as a tuple of ints; raises if it is not the number of units per stage."""
    if not isinstance(value, (tuple, list)):
        raise arguments.invalid(name, "the number of units of each stage, as in (3, 4, 9)", value)
    return tuple(arguments.positive_int(name, num_units) for num_units in value)


def half_multiple(name, value):
    """Returns `value` as a float; raises if it is not a positive multiple of 0.5."""
    if arguments.positive_number(name, value) * 2 % 1:
        raise arguments.invalid(name, "a multiple of 0.5, since the norms have 32 groups", value)
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

    patch_size: int | tuple[int, int] = checked(arguments.pair)
    hidden_dim: int = checked(arguments.positive_int)
    num_layers: int = checked(arguments.positive_int)
    num_heads: int = checked(arguments.positive_int)
    mlp_dim: int = checked(arguments.positive_int)
    head_dim: int | None = checked(arguments.positive_int, optional=True, default=None)
    stages: tuple[int, ...] | None = checked(stage_sizes, optional=True, default=None)
    width_factor: float = checked(half_multiple, default=1.0)
    pooling: str | None = checked(arguments.one_of, POOLINGS, default="token")
    position_embedding: str = checked(arguments.one_of, POSITION_EMBEDDINGS, default="learned")
    position_interpolation: str = checked(arguments.one_of, POSITION_METHODS, default="linear")
    grid_size: tuple[int, int] | None = checked(arguments.pair, optional=True, default=None)
    class_token: bool | None = checked(arguments.boolean, optional=True, default=None)
    class_token_position: bool = checked(arguments.boolean, default=True)
    distillation_token: bool = checked(arguments.boolean, default=False)
    distillation_head: bool = checked(arguments.boolean, default=True)
    return_both_heads: bool = checked(arguments.boolean, default=False)
    num_registers: int = checked(arguments.non_negative_int, default=0)
    norm_after_pooling: bool = checked(arguments.boolean, default=False)
    representation_size: int | None = checked(arguments.positive_int, optional=True, default=None)
    layer_scale_init: float | None = checked(arguments.number, optional=True, default=None)
    qk_norm: bool = checked(arguments.boolean, default=False)
    activation: str | Callable = checked(activation_of, default="gelu_tanh")  # noqa: RUF009
    layer_norm_epsilon: float = checked(arguments.positive_number, default=1e-6)

    @classmethod
    def from_variant(cls, variant, **overrides):
        """Returns the config of a variant, such as "B/16" or "R50+B/16"; `overrides` set other fields."""
        size, patch_size, stages = decode_variant(variant)
        return arguments.record(cls, {**size._asdict(), "patch_size": patch_size, "stages": stages, **overrides})

    def __post_init__(self):
        super().__post_init__()
        if self.class_token is None:
            self._set("class_token", self.pooling in ("token", None))
        if not self.distillation_token:
            self._set("distillation_head", True)
        self._check_head_dim()
        self._check_grid()
        self._check_tokens()

    def _check_head_dim(self):
        width = self.hidden_dim // self.num_heads
        received = f"Received: hidden_dim={self.hidden_dim}, num_heads={self.num_heads}"
        if not width:
            raise ValueError(f"Expected at least as many channels as heads. {received}")
        if self.head_dim is None and self.hidden_dim % self.num_heads:
            raise ValueError(
                "Expected `num_heads` to divide `hidden_dim`, or `head_dim` to confirm that the heads are narrower. "
                f"{received}, head_dim=None; pass head_dim={width} to confirm."
            )
        if self.head_dim not in (None, width):
            expected = f"hidden_dim // num_heads = {self.hidden_dim} // {self.num_heads} = {width}"
            raise arguments.invalid("head_dim", expected, self.head_dim)
        # None if it follows from the other fields, so that copies with other values derive it again.
        self._set("head_dim", width if self.hidden_dim % self.num_heads else None)

    def _check_grid(self):
        if self.stages is None and self.width_factor != 1:
            raise ValueError(f"Expected width_factor=1 without a ResNet. Received: width_factor={self.width_factor}")
        if self.grid_size is not None and not self.any_size:
            raise ValueError(
                f"Expected grid_size=None with images of a known size. Received: grid_size={self.grid_size}, "
                f"image_size={self.image_size}"
            )
        # Raises if the images are smaller than a patch.
        _ = self.grid

    def _check_tokens(self):
        if self.pooling == "token" and not self.class_token:
            raise ValueError('Expected a class token with pooling="token". Received: class_token=False')
        if self.distillation_token and (
            self.pooling != "token" or self.representation_size is not None or self.norm_after_pooling
        ):
            raise ValueError(
                'Expected pooling="token", no representation_size and norm_after_pooling=False with '
                f"distillation_token=True. Received: pooling={self.pooling!r}, representation_size="
                f"{self.representation_size}, norm_after_pooling={self.norm_after_pooling}"
            )
        if self.return_both_heads and not (self.has_distillation_head and self.num_classes):
            raise ValueError(
                "Expected distillation_token=True, with its head, and num_classes above 0 with return_both_heads=True. "
                f"Received: distillation_token={self.distillation_token}, distillation_head={self.distillation_head}, "
                f"num_classes={self.num_classes}"
            )
        if self.norm_after_pooling and self.pooling not in ("token", "gap"):
            raise ValueError(
                f'Expected pooling="token" or "gap" with norm_after_pooling=True. Received: pooling={self.pooling!r}'
            )

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

    @classmethod
    def from_variant(cls, variant, **overrides):
        """Returns the config of a variant, such as "R50x1", like `ViTConfig.from_variant`."""
        stages, width_factor = decode_resnet(variant)
        return arguments.record(cls, {"stages": stages, "width_factor": width_factor, **overrides})

    @property
    def block_names(self):
        """The names of the residual units, in order."""
        return [f"stage_{s}_unit_{u:02d}" for s, units in enumerate(self.stages, 1) for u in range(1, units + 1)]
