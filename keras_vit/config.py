"""The record of what a model is: all that decides what given weights compute, as plain data that reads and writes JSON.

A model carries its record in the config of its first layer; `keras_vit.config_of` finds it there.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from keras_vit import arguments
from keras_vit.interpolation import POSITION_METHODS
from keras_vit.model_config import DEFAULT_IMAGE_SIZE, ModelConfig, activation_of, check_names
from keras_vit.variants import decode_resnet, decode_variant

POSITION_EMBEDDINGS = ("learned", "learned2d", "relative", "sincos2d", "none")
POOLINGS = ("token", "gap", "map", None)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ViTConfig(ModelConfig):
    """The record of a Vision Transformer, hybrids included: what `keras_vit.ViT` builds.

    Its fields are named and explained as the arguments of `keras_vit.ViT`. What a run chooses and weights do not depend
    on, as dropout and dtype, is no part of it.

    Args:
        patch_size: Int, or (height, width), in pixels; of the feature map where there is a ResNet below.
        hidden_dim: Int.
        num_layers: Int.
        num_heads: Int.
        mlp_dim: Int.
        **others: As in `keras_vit.ViT`; `layer_scale_init` says with any number that the residual branches are scaled.

    Raises:
        ValueError: If a value is out of its range, or does not go with another.

    Example:

    >>> config = keras_vit.ViTConfig.from_variant("B/16", num_classes=10)
    >>> config.hidden_dim, config.grid, config == keras_vit.ViTConfig.from_dict(config.to_dict())
    (768, (14, 14), True)
    """

    family: ClassVar[str] = "vit"

    patch_size: int | tuple[int, int]
    hidden_dim: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    head_dim: int | None = None
    stages: tuple[int, ...] | None = None
    width_factor: float = 1.0
    pooling: str | None = "token"
    position_embedding: str = "learned"
    position_interpolation: str = "linear"
    grid_size: tuple[int, int] | None = None
    class_token: bool | None = None
    class_token_position: bool = True
    distillation_token: bool = False
    distillation_head: bool = True
    return_both_heads: bool = False
    num_registers: int = 0
    norm_after_pooling: bool = False
    representation_size: int | None = None
    layer_scale_init: float | None = None
    qk_norm: bool = False
    activation: str | Callable = "gelu_tanh"
    layer_norm_epsilon: float = 1e-6

    @classmethod
    def from_variant(cls, variant, **overrides):
        """Returns the record of a variant.

        Args:
            variant: String, as "B/16" or "R50+B/16".
            **overrides: Other values of its fields.

        Raises:
            ValueError: If there is no such variant or field, or a value cannot be.
        """
        size, patch_size, stages = decode_variant(variant)
        check_names(cls, overrides)
        return cls(**{**size._asdict(), "patch_size": patch_size, "stages": stages, **overrides})

    def __post_init__(self):
        super().__post_init__()
        self._set(
            patch_size=arguments.pair("patch_size", self.patch_size),
            num_registers=arguments.non_negative_int("num_registers", self.num_registers),
            activation=activation_of("activation", self.activation),
            layer_norm_epsilon=arguments.positive_number("layer_norm_epsilon", self.layer_norm_epsilon),
        )
        for name in ("hidden_dim", "num_layers", "num_heads", "mlp_dim"):
            self._set(**{name: arguments.positive_int(name, getattr(self, name))})
        for name in ("representation_size", "head_dim"):
            if getattr(self, name) is not None:
                self._set(**{name: arguments.positive_int(name, getattr(self, name))})
        if self.layer_scale_init is not None:
            self._set(layer_scale_init=arguments.number("layer_scale_init", self.layer_scale_init))
        self._check_head_dim()
        arguments.one_of("pooling", self.pooling, POOLINGS)
        arguments.one_of("position_embedding", self.position_embedding, POSITION_EMBEDDINGS)
        arguments.one_of("position_interpolation", self.position_interpolation, POSITION_METHODS)
        self._check_grid()
        self._check_tokens()

    def _check_head_dim(self):
        width = self.hidden_dim // self.num_heads
        if not width:
            raise ValueError(
                f"Expected at least as many channels as heads. Received: hidden_dim={self.hidden_dim}, "
                f"num_heads={self.num_heads}"
            )
        if self.head_dim is None and self.hidden_dim % self.num_heads:
            raise ValueError(
                "Expected `num_heads` to divide `hidden_dim`, or `head_dim` to say that the heads are not to be as "
                f"wide together. Received: hidden_dim={self.hidden_dim}, num_heads={self.num_heads}, head_dim=None; "
                f"pass head_dim={width} if that is meant."
            )
        if self.head_dim not in (None, width):
            raise ValueError(
                "Invalid value received for argument `head_dim`. Expected hidden_dim // num_heads = "
                f"{self.hidden_dim} // {self.num_heads} = {width}. Received: {self.head_dim!r}"
            )
        # Else it follows from the others, which a copy may change.
        self._set(head_dim=width if self.hidden_dim % self.num_heads else None)

    def _check_grid(self):
        if self.stages is not None:
            self._set(stages=stage_sizes(self.stages))
            self._set(width_factor=checked_width_factor(self.width_factor))
        elif self.width_factor != 1:
            raise ValueError(
                f"Expected width_factor=1 where there is no ResNet. Received: width_factor={self.width_factor}"
            )
        if self.grid_size is not None:
            self._set(grid_size=arguments.pair("grid_size", self.grid_size))
            if not self.any_size:
                raise ValueError(
                    f"Expected grid_size=None with images of a known size. Received: grid_size={self.grid_size}, "
                    f"image_size={self.image_size}"
                )
        # Raises where images are too small.
        _ = self.grid

    def _check_tokens(self):
        if self.class_token is None:
            self._set(class_token=self.pooling in ("token", None))
        self._check_bools(
            "class_token",
            "class_token_position",
            "distillation_token",
            "distillation_head",
            "return_both_heads",
            "norm_after_pooling",
            "qk_norm",
        )
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
        if not self.distillation_token:
            self._set(distillation_head=True)
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
        """The names of the transformer blocks, from the first."""
        return [f"block_{i:02d}" for i in range(self.num_layers)]

    @property
    def any_size(self):
        """Whether images may have any size at run time."""
        return self.image_size == (None, None)

    @property
    def stride(self):
        """By how much the ResNet below the patches reduces images; 1 without one."""
        return 1 if self.stages is None else total_stride(self.stages)

    @property
    def grid(self):
        """(rows, columns) of the patches of an image; in a model of any size, of its table of positions."""
        if self.grid_size is not None:
            return self.grid_size
        image_size = (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE) if self.any_size else self.image_size
        return token_grid(image_size, self.stages, self.patch_size)

    @property
    def has_distillation_head(self):
        """Whether the distillation token has a head of its own, or is pooled for one to come."""
        return self.distillation_token and self.distillation_head

    @property
    def num_prefix_tokens(self):
        """How many tokens stand before the patches: class, distillation and register tokens."""
        return self.num_positioned_tokens + self.num_registers

    @property
    def num_positioned_tokens(self):
        """How many of them may have a position embedding: all but the registers."""
        return int(self.class_token) + int(self.distillation_token)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class BiTConfig(ModelConfig):
    """The record of a Big Transfer ResNet: what `keras_vit.BiT` builds.

    Args:
        stages: Ints, the number of units of each stage.
        width_factor: Float, a multiple of 0.5, the widths relative to a plain ResNet's.
        pool_padding: "lowest" or "zeros", what surrounds the first convolution's output where its maxima are taken.
        **others: As in `keras_vit.BiT`.

    Raises:
        ValueError: If a value is out of its range.

    Example:

    >>> keras_vit.BiTConfig.from_variant("R50x1").stages
    (3, 4, 6, 3)
    """

    family: ClassVar[str] = "bit"

    stages: tuple[int, ...]
    width_factor: float
    pool_padding: str = "lowest"

    @classmethod
    def from_variant(cls, variant, **overrides):
        """Returns the record of a variant.

        Args:
            variant: String, as "R50x1".
            **overrides: Other values of its fields.

        Raises:
            ValueError: If there is no such variant or field, or a value cannot be.
        """
        stages, width_factor = decode_resnet(variant)
        check_names(cls, overrides)
        return cls(**{"stages": stages, "width_factor": width_factor, **overrides})

    def __post_init__(self):
        super().__post_init__()
        self._set(stages=stage_sizes(self.stages), width_factor=checked_width_factor(self.width_factor))
        arguments.one_of("pool_padding", self.pool_padding, ("lowest", "zeros"))

    @property
    def block_names(self):
        """The names of the units, from the first."""
        return [f"stage_{s}_unit_{u:02d}" for s, units in enumerate(self.stages, 1) for u in range(1, units + 1)]


def stage_sizes(stages):
    """Returns `stages` as a tuple of ints, or raises if it is not the number of units of each stage."""
    if not isinstance(stages, (tuple, list)):
        raise ValueError(
            "Invalid value received for argument `stages`. Expected the number of units of each stage, as in "
            f"(3, 4, 9). Received: {stages!r}"
        )
    return tuple(arguments.positive_int("stages", num_units) for num_units in stages)


def checked_width_factor(value):
    """Returns `value` as a float, or raises if it is no multiple of 0.5 above 0."""
    if arguments.positive_number("width_factor", value) * 2 % 1:
        raise ValueError(
            "Invalid value received for argument `width_factor`. Expected a multiple of 0.5, since the norms have 32 "
            f"groups. Received: {value!r}"
        )
    return float(value)


def total_stride(stages):
    """By how much a ResNet reduces images: fourfold by the root, twofold by each stage but the first."""
    return 4 * 2 ** max(len(stages) - 1, 0)


def token_grid(image_size, stages, patch_size):
    """Rows and columns of whole patches in the feature map of images of a known size.

    Args:
        image_size: (height, width) in pixels.
        stages: The number of units of each stage; None where there is no ResNet and patches are cut out of the images.
        patch_size: (height, width) in pixels of the feature map.

    Returns:
        (rows, columns).

    Raises:
        ValueError: If the images are smaller than one patch.
    """
    stride = 1 if stages is None else total_stride(stages)
    smallest = [(patch - 1) * stride + 1 for patch in patch_size]
    if image_size[0] < smallest[0] or image_size[1] < smallest[1]:
        raise ValueError(
            f"Expected images of at least one patch, {smallest[0]} x {smallest[1]} pixels. "
            f"Received: images of {image_size[0]} x {image_size[1]} pixels."
        )
    return tuple(-(-side // stride) // patch for side, patch in zip(image_size, patch_size, strict=True))
