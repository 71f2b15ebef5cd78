"""The config of Vision Transformers and hybrids."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, TypedDict

from keras_vit import arguments
from keras_vit.config import DEFAULT_IMAGE_SIZE, MOST_LAYERS, ModelConfig, checked, checked_activation, stage_sizes
from keras_vit.images.interpolation import POSITION_METHODS
from keras_vit.models.bit.config import RESNET_EPSILONS, half_multiple, parts_of_resnet, total_stride
from keras_vit.models.vit.variants import decode_variant, name_from_fields

POSITION_EMBEDDINGS = ("learned", "learned2d", "relative", "sincos2d", "none")
POOLINGS = ("token", "gap", "token_gap", "map", "none")
ROTARY_EMBEDDINGS = ("dinov3", "eva02", "axial")


def merged_tokens(name, value):
    """Returns `value` as an int, or as a tuple of ints; raises ValueError if a number is negative."""
    if isinstance(value, (tuple, list)):
        return tuple(arguments.non_negative_int(name, count) for count in value)
    return arguments.non_negative_int(name, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(ModelConfig):
    """The config of a Vision Transformer, or of a hybrid with a ResNet: all settings that change the outputs.

    `keras_vit.ViT` takes each field as an argument.

    Args:
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels. Pixels at the right and
            bottom that do not fill a patch are dropped, with a warning.
        in_channels: Int, the number of image channels.
        num_classes: Int, the number of classes; 0 for features without a head.
        task: "single_label" (one class per image), "multi_label" (any number of classes) or "regression" (the outputs
            are numbers). Predictions and exports apply a softmax, a sigmoid or nothing, respectively.
        class_names: Strings, the names of the classes for predictions and exports, or None.
        preprocessing: A `keras_vit.Preprocessing`. Builders also take a dict of the fields to change.
        include_preprocessing: Bool. True if the model takes raw images in 0..255; False if it takes images from
            `preprocess_input`.
        classifier_activation: Activation of the head; None or "linear" for logits.
        patch_size: Int or (height, width), in pixels; for hybrids, in pixels of the feature map.
        hidden_dim: Int, the width of a token.
        num_layers: Int, the number of blocks.
        num_heads: Int, the attention heads per block.
        head_dim: Int, the head width, `hidden_dim // num_heads`. Required if `num_heads` does not divide `hidden_dim`.
        mlp_dim: Int, the hidden width of the MLPs.
        stages: Ints, the units per stage of a hybrid's ResNet; () if the ResNet has only a root, no stages. None: no
            ResNet.
        width_factor: Float, a multiple of 0.5, the ResNet's width relative to a standard ResNet.
        resnet_epsilons: The code base whose epsilons the ResNet uses: "official" or "timm".
        pooling: "token" (class token), "gap" (mean of the patches), "token_gap" (both, concatenated), "map" (attention
            pooling) or "none" (all tokens).
        position_embedding: "learned" (per position), "learned2d" (per row and per column), "relative" (per 1-D offset
            between two tokens, in each attention layer), "sincos2d" (fixed) or "none".
        position_interpolation: The method that resizes the position table if the image size changes at run time or for
            `weights=`: "linear", "bicubic", "bicubic_antialias" or "bicubic_offset", as in `PositionEmbedding`.
        grid_size: (rows, columns) of the position table if `image_size` is (None, None). None: the grid of images of
            224 x 224 pixels.
        class_token: Bool, whether there is a class token. None: True if `pooling` is "token", "token_gap" or "none".
        class_token_position: Bool, whether class and distillation tokens get a position embedding.
        distillation_token: Bool, whether to add DeiT's distillation token and its head, `head_dist`. The output is the
            mean of both heads' outputs.
        distillation_head: Bool; False omits the head `head_dist`.
        return_both_heads: Bool; True returns [class token logits, distillation token logits] instead of the mean.
        num_registers: Int, the number of register tokens, which have no position embeddings.
        rotary_embedding: The kind of rotary positions, "dinov3", "eva02" or "axial" (RoPE-ViT), as in
            `RotaryEmbedding`. They are used in addition to `position_embedding`. None for no rotary positions.
        rotary_grid: (rows, columns) of a grid. The rotary positions of any other grid are scaled to this grid, as in
            EVA-02. None for no scaling.
        patch_bias: Bool, whether the patch embedding has a bias.
        norm_before_blocks: Bool, whether to normalize the tokens before the first block, as in CLIP.
        norm_after_pooling: Bool; True normalizes the pooled vector (layer `fc_norm`) instead of all tokens.
        projection_dim: Int, the width of a dense layer without bias after the pooling, as in CLIP. None: no such layer.
        representation_size: Int, the width of a dense tanh layer before the head; None for no such layer.
        layer_scale_init: Float, the initial value of LayerScale; None for no LayerScale.
        qk_norm: Bool, whether to layer-normalize queries and keys.
        qkv_bias: Bool, whether queries, keys and values have a bias.
        key_bias: Bool, whether the keys have a bias.
        attention_norm: Bool, whether to normalize the concatenated heads before their output projection.
        gated_mlp: Bool, whether the MLPs' hidden layer is gated: SwiGLU with activation="silu".
        mlp_norm: Bool, whether to normalize the MLPs' hidden layer.
        activation: "gelu_tanh", "gelu" (exact), "quick_gelu" (OpenAI's CLIP) or any Keras activation.
        layer_norm_epsilon: Float, the epsilon of all norms.
        token_merging: Int, or one int per block, the number of patches that a block merges into similar patches. A
            block merges at most half of its patches. Usual values are 8 or 16 of 196 patches. A block that merges
            patches outputs the tokens and their sizes, which are the numbers of patches merged into each token.

    Raises:
        ValueError: If a value is out of range or conflicts with another.

    Example:

    >>> config = keras_vit.ViTConfig.from_variant("B/16", num_classes=10)
    >>> config.hidden_dim, config.grid, config == keras_vit.ViTConfig.from_dict(config.to_dict())
    (768, (14, 14), True)
    """

    family: ClassVar[str] = "vit"
    sizes: ClassVar[tuple[str, ...]] = (
        *("in_channels", "num_classes", "hidden_dim", "num_layers", "num_heads", "mlp_dim", "patch_size", "grid_size"),
        *("stages", "width_factor"),
    )
    table_field: ClassVar[str | None] = "grid_size"

    patch_size: int | tuple[int, int] = checked(arguments.pair, arguments.LARGEST)
    hidden_dim: int = checked(arguments.positive_int, arguments.LARGEST)
    num_layers: int = checked(arguments.positive_int, MOST_LAYERS)
    num_heads: int = checked(arguments.positive_int, arguments.LARGEST)
    mlp_dim: int = checked(arguments.positive_int, arguments.LARGEST)
    head_dim: int | None = checked(arguments.positive_int, optional=True, default=None)
    stages: tuple[int, ...] | None = checked(stage_sizes, optional=True, default=None)
    width_factor: float = checked(half_multiple, default=1.0)
    resnet_epsilons: str = checked(arguments.choice, RESNET_EPSILONS, default="official")
    pooling: str = checked(arguments.choice, POOLINGS, default="token")
    position_embedding: str = checked(arguments.choice, POSITION_EMBEDDINGS, default="learned")
    position_interpolation: str = checked(arguments.choice, POSITION_METHODS, default="linear")
    grid_size: tuple[int, int] | None = checked(arguments.pair, arguments.LARGEST, optional=True, default=None)
    class_token: bool | None = checked(arguments.boolean, optional=True, default=None)
    class_token_position: bool = checked(arguments.boolean, default=True)
    distillation_token: bool = checked(arguments.boolean, default=False)
    distillation_head: bool = checked(arguments.boolean, default=True)
    return_both_heads: bool = checked(arguments.boolean, default=False)
    num_registers: int = checked(arguments.non_negative_int, arguments.LARGEST, default=0)
    rotary_embedding: str | None = checked(arguments.choice, ROTARY_EMBEDDINGS, optional=True, default=None)
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
    activation: str | Callable = checked(checked_activation, default="gelu_tanh")  # noqa: RUF009
    layer_norm_epsilon: float = checked(arguments.epsilon, default=1e-6)
    token_merging: int | tuple[int, ...] = checked(merged_tokens, default=0)

    @staticmethod
    def variant_sizes(variant):
        """Returns the config fields that a variant determines, as a dict."""
        size, patch_size, stages = decode_variant(variant)
        return {**size._asdict(), "patch_size": patch_size, "stages": stages}

    @classmethod
    def name_from_fields(cls, fields):
        return name_from_fields(fields)

    @classmethod
    def _parts(cls, fields):
        yield from parts_of_resnet(fields)
        if fields["num_layers"]:
            patch, grid = (size and f"{size[0]} x {size[1]}" for size in (fields["patch_size"], fields["grid_size"]))
            yield f"hidden_dim {fields['hidden_dim']}, {fields['num_layers']} blocks"
            yield f"{fields['num_heads'] or '?'} heads, mlp_dim {fields['mlp_dim']}"
            yield f"patch {patch or 'unknown'}, grid {grid or 'unknown'}"

    def __post_init__(self):
        super().__post_init__()
        if self.class_token is None:
            self._set("class_token", self.pooling in ("token", "token_gap", "none"))
        if not self.qkv_bias:
            self._set("key_bias", False)
        if not self.distillation_token:
            self._set("distillation_head", True)
        for holds, expected, *names in self._rules():
            if not holds:
                received = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
                raise ValueError(f"Expected {expected}. Received: {received}")
        width, remainder = divmod(self.hidden_dim, self.num_heads)
        # If the sizes imply `head_dim`, store None, so that a copy with different sizes computes `head_dim` again.
        self._set("head_dim", width if remainder else None)
        # `grid` raises ValueError if the images are smaller than a patch.
        _ = self.grid
        if not any(self.merged_per_block):
            self._set("token_merging", 0)
        if len(self.merged_per_block) != self.num_layers:
            expected = f"an integer, or one for each of the {self.num_layers} blocks"
            raise arguments.invalid("token_merging", expected, self.token_merging)

    def _rules(self):
        """Yields (True if the rule holds, text of the expected values, *names of the fields) for each rule."""
        width, remainder = divmod(self.hidden_dim, self.num_heads)
        yield width, "at least as many channels as heads", "hidden_dim", "num_heads"
        holds = self.head_dim == width or (self.head_dim is None and not remainder)
        expected = f"head_dim={width} (hidden_dim // num_heads), or a `num_heads` that divides `hidden_dim`"
        yield holds, expected, "hidden_dim", "num_heads", "head_dim"
        expected = "heads of a multiple of 4 channels if `rotary_embedding` is set"
        yield not self.rotary_embedding or width % 4 == 0, expected, "rotary_embedding", "hidden_dim", "num_heads"
        holds = self.rotary_grid is None or self.rotary_embedding in ("eva02", "axial")
        yield holds, '`rotary_grid` only with rotary_embedding="eva02" or "axial"', "rotary_grid", "rotary_embedding"
        is_hybrid = self.stages is not None
        yield is_hybrid or self.width_factor == 1, "width_factor=1 without a ResNet", "width_factor"
        official = is_hybrid or self.resnet_epsilons == "official"
        yield official, 'resnet_epsilons="official" without a ResNet', "resnet_epsilons"
        holds = self.grid_size is None or self.any_size
        yield holds, "grid_size=None with images of a known size", "grid_size", "image_size"
        holds = self.class_token or self.pooling not in ("token", "token_gap")
        yield holds, f"a class token with pooling={self.pooling!r}", "class_token"
        holds = self.projection_dim is None or self.pooling != "none"
        yield holds, 'no projection_dim with pooling="none"', "projection_dim"
        names = ("pooling", "representation_size", "projection_dim", "norm_after_pooling")
        plain = tuple(getattr(self, name) for name in names) == ("token", None, None, False)
        expected = (
            'pooling="token", no representation_size, no projection_dim and norm_after_pooling=False if '
            "the distillation token has a head"
        )
        yield plain or not self.has_distillation_head, expected, *names
        expected = "distillation_token=True, distillation_head=True and num_classes above 0 if return_both_heads=True"
        holds = not self.return_both_heads or (self.has_distillation_head and self.num_classes)
        yield holds, expected, "distillation_token", "distillation_head", "num_classes"
        holds = not self.norm_after_pooling or self.pooling in ("token", "gap")
        yield holds, 'pooling="token" or "gap" with norm_after_pooling=True', "pooling"
        expected = "token_merging=0 with relative or rotary positions, which need all patches"
        yield not (self.has_positions_in_blocks and any(self.merged_per_block)), expected, "token_merging"

    @property
    def merged_per_block(self):
        """The number of patches that each block merges."""
        several = isinstance(self.token_merging, tuple)
        return self.token_merging if several else (self.token_merging,) * self.num_layers

    @property
    def block_names(self):
        """The names of the transformer blocks, in order."""
        return [f"block_{i:02d}" for i in range(self.num_layers)]

    @property
    def any_size(self):
        """True if the model takes images of any size."""
        return self.image_size == (None, None)

    @property
    def stride(self):
        """The stride of the ResNet below the patches; 1 without a ResNet."""
        return 1 if self.stages is None else total_stride(self.stages)

    @property
    def grid(self):
        """The (rows, columns) of the patches or, if the model takes images of any size, of the position table."""
        if self.grid_size is not None:
            return self.grid_size
        image_size = (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE) if self.any_size else self.image_size
        return arguments.grid_size(image_size, self.patch_size, self.stride)

    @property
    def has_positions_in_blocks(self):
        """True if the blocks have relative or rotary positions, and so need all patches in order."""
        return self.position_embedding == "relative" or self.rotary_embedding is not None

    @property
    def has_distillation_head(self):
        """True if the distillation token is pooled separately. If num_classes > 0, `head_dist` reads this token."""
        return self.distillation_token and self.distillation_head

    @property
    def num_prefix_tokens(self):
        """The number of class, distillation and register tokens before the patches."""
        return self.num_positioned_tokens + self.num_registers

    @property
    def num_positioned_tokens(self):
        """The number of prefix tokens that may have a position embedding: all but the registers."""
        return int(self.class_token) + int(self.distillation_token)


class ViTFields(TypedDict, total=False):
    """The architecture fields of `ViTConfig`, as keyword arguments of `keras_vit.ViT`."""

    patch_size: int | tuple[int, int]
    hidden_dim: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    head_dim: int | None
    stages: tuple[int, ...] | None
    width_factor: float
    resnet_epsilons: str
    position_embedding: str
    position_interpolation: str
    grid_size: tuple[int, int] | None
    class_token: bool | None
    class_token_position: bool
    distillation_token: bool
    distillation_head: bool
    return_both_heads: bool
    num_registers: int
    rotary_embedding: str | None
    rotary_grid: tuple[int, int] | None
    patch_bias: bool
    norm_before_blocks: bool
    norm_after_pooling: bool
    projection_dim: int | None
    representation_size: int | None
    layer_scale_init: float | None
    qk_norm: bool
    qkv_bias: bool
    key_bias: bool
    attention_norm: bool
    gated_mlp: bool
    mlp_norm: bool
    activation: str | Callable
    layer_norm_epsilon: float
