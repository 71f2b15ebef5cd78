"""The Vision Transformer as a functional Keras model."""

from collections.abc import Iterable

import keras

from keras_vit import arguments, layers
from keras_vit.layers import initializers
from keras_vit.layers.class_token import PrefixTokens
from keras_vit.layers.rotary_embedding import KINDS as ROTARY_KINDS
from keras_vit.models.bit.model import hybrid_stem
from keras_vit.models.family import RecordedModel


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(RecordedModel):
    """A ViT or hybrid as a functional `keras.Model`, built by `keras_vit.ViT`.

    Where the heads read the class token alone, or also the distillation token, the last block computes no others, which
    saves 1/12 of the work of 12 blocks. Models cut from this one, such as `keras.Model(model.input,
    model.blocks[-1].output)`, have all tokens.

    Example:

    >>> model = keras_vit.ViTB16(num_classes=10)
    >>> model.config.num_heads, model.grid_size, len(model.blocks)
    (12, (14, 14), 12)
    """

    @property
    def grid_size(self):
        """The patch grid, (rows, columns); for a model of any size, that of its position table."""
        return self.config.grid

    @property
    def num_prefix_tokens(self):
        """The number of tokens before the patches: class, distillation and register tokens."""
        return self.config.num_prefix_tokens

    @property
    def patch_embedding(self):
        """The patch embedding layer."""
        return self.get_layer("patch_embedding")

    @property
    def blocks(self):
        """The transformer blocks, in order."""
        return [self.get_layer(name) for name in self.config.block_names]


def vision_transformer(
    config,
    *,
    include_preprocessing=False,
    head_init="zeros",
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    drop_path_rate=0.0,
    patch_dropout_rate=0.0,
    token_merging=0,
    remat=False,
    name=None,
):
    """Builds the model of a `ViTConfig` with random weights; the other arguments are those of `keras_vit.ViT`."""
    arguments.rate("drop_path_rate", drop_path_rate)
    arguments.rate("patch_dropout_rate", patch_dropout_rate)
    token_merging = _one_a_block("token_merging", token_merging, config.num_layers)
    _check_run(config, patch_dropout_rate, token_merging)
    num_prefix_tokens = config.num_prefix_tokens

    inputs = keras.Input((*config.image_size, config.in_channels), name="images")
    images = layers.ImageNormalization(apply=include_preprocessing, config=config, name="normalization")(inputs)
    feature_map = images if config.stages is None else hybrid_stem(images, config)
    x = layers.PatchEmbedding(config.hidden_dim, config.patch_size, use_bias=config.patch_bias, name="patch_embedding")(
        feature_map
    )
    if config.num_registers:
        stddev = initializers.RandomNormal(stddev=1e-6)
        x = PrefixTokens(config.num_registers, initializer=stddev, name="registers")(x)
    if config.distillation_token:
        x = PrefixTokens(1, name="distillation_token")(x)
    if config.class_token:
        x = layers.ClassToken(name="class_token")(x)
    if config.position_embedding in layers.position_embedding.METHODS:
        position_layer = layers.PositionEmbedding(
            config.grid,
            method=config.position_embedding,
            patch_size=config.patch_size,
            num_prefix_tokens=num_prefix_tokens,
            num_prefix_positions=config.num_positioned_tokens if config.class_token_position else 0,
            interpolation=config.position_interpolation,
            name="position_embedding",
        )
        x = position_layer(x, feature_map) if config.any_size else position_layer(x)
    if dropout_rate:
        x = keras.layers.Dropout(dropout_rate, name="dropout")(x)
    rotary = _rotary_embedding(config, feature_map)
    if config.norm_before_blocks:
        x = keras.layers.LayerNormalization(epsilon=config.layer_norm_epsilon, name="norm_before_blocks")(x)
    if patch_dropout_rate:
        x = layers.PatchDropout(patch_dropout_rate, num_prefix_tokens=num_prefix_tokens, name="patch_dropout")(x)
    sizes = None
    # At least 1, even for a single token.
    max_distance = max(1, num_prefix_tokens + arguments.num_patches(config.grid) - 1)
    for i in range(config.num_layers):
        block = layers.TransformerBlock(
            config.num_heads,
            config.mlp_dim,
            dropout_rate=dropout_rate,
            attention_dropout_rate=attention_dropout_rate,
            drop_path_rate=drop_path_rate * i / max(config.num_layers - 1, 1),
            layer_scale_init=config.layer_scale_init,
            qk_norm=config.qk_norm,
            activation=config.activation,
            layer_norm_epsilon=config.layer_norm_epsilon,
            max_relative_distance=max_distance if config.position_embedding == "relative" else None,
            rotary_layout=None if rotary is None else ROTARY_KINDS[config.rotary_embedding].layout,
            qkv_bias=config.qkv_bias,
            key_bias=config.key_bias,
            attention_norm=config.attention_norm,
            gated_mlp=config.gated_mlp,
            mlp_norm=config.mlp_norm,
            token_merging=token_merging[i],
            num_prefix_tokens=num_prefix_tokens if token_merging[i] else 0,
            remat=remat,
            name=f"block_{i:02d}",
        )
        given = {"sizes": sizes, "rotary": rotary}
        x = block(x, **{name: value for name, value in given.items() if value is not None})
        if token_merging[i]:
            x, sizes = x
    if not config.norm_after_pooling:
        x = keras.layers.LayerNormalization(epsilon=config.layer_norm_epsilon, name="norm")(x)
    outputs = _head(config, x, sizes, head_init)
    return VisionTransformer(inputs, outputs, name=name)


def _rotary_embedding(config, feature_map):
    """Adds the layer of rotary positions; returns its output, or None."""
    if config.rotary_embedding is None:
        return None
    return layers.RotaryEmbedding(
        config.rotary_embedding,
        config.head_dim or config.hidden_dim // config.num_heads,
        config.patch_size,
        config.rotary_grid,
        name="rotary_embedding",
    )(feature_map)


def _head(config, tokens, sizes, head_init):
    """Adds pooling and head; returns logits, or features if `num_classes` is 0."""
    x, pool = tokens, None
    if config.pooling == "map":
        pool = layers.AttentionPooling(
            config.num_heads,
            config.mlp_dim,
            activation=config.activation,
            layer_norm_epsilon=config.layer_norm_epsilon,
            num_prefix_tokens=config.num_prefix_tokens,
            name="pooling",
        )
    elif config.pooling is not None:
        pool = layers.TokenPooling(config.pooling, num_prefix_tokens=config.num_prefix_tokens, name="pooling")
    if pool is not None:
        x = pool(x) if sizes is None or config.pooling == "token" else pool(x, sizes)
    if config.norm_after_pooling:
        x = keras.layers.LayerNormalization(epsilon=config.layer_norm_epsilon, name="fc_norm")(x)
    if config.projection_dim is not None:
        init = initializers.LecunNormal()
        x = keras.layers.Dense(config.projection_dim, use_bias=False, kernel_initializer=init, name="projection")(x)
    # As in the official code, pre_logits always exists, and its tanh is a separate layer.
    if config.representation_size is None:
        x = keras.layers.Identity(name="pre_logits")(x)
    else:
        init = initializers.LecunNormal()
        x = keras.layers.Dense(config.representation_size, kernel_initializer=init, name="pre_logits")(x)
        x = keras.layers.Activation("tanh", name="pre_logits_tanh")(x)
    options = {"activation": config.classifier_activation, "kernel_initializer": head_init, "dtype": "float32"}
    if config.num_classes:
        x = keras.layers.Dense(config.num_classes, name="head", **options)(x)
    if not config.has_distillation_head:
        return x
    pool = layers.TokenPooling("token", num_prefix_tokens=config.num_prefix_tokens, index=1, name="pooling_dist")
    y = pool(tokens)
    if config.num_classes:
        y = keras.layers.Dense(config.num_classes, name="head_dist", **options)(y)
    return [x, y] if config.return_both_heads else keras.layers.Average(dtype=x.dtype, name="mean_of_heads")([x, y])


def _check_run(config, patch_dropout_rate, token_merging):
    """Raises if an argument does not fit the config."""
    breaks_offsets = {"patch_dropout_rate": patch_dropout_rate, "token_merging": any(token_merging) and token_merging}
    for name, value in breaks_offsets.items():
        if config.has_positions_in_blocks and value:
            raise ValueError(
                f"Expected {name}=0 with relative or rotary positions, which need all patches. Received: {name}={value}"
            )


def _one_a_block(name, value, num_layers):
    """Returns one non-negative int per block; an int is repeated."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    values = tuple(value) if several else (value,) * num_layers
    if len(values) != num_layers:
        raise arguments.invalid(name, f"an integer, or one for each of the {num_layers} blocks", value)
    return [arguments.non_negative_int(name, v) for v in values]
