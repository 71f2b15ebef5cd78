"""The layers that only token-based Visual Transformers have: the VT module and its parts."""

import math

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers import initializers
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.dense import Dense
from keras_vit.layers.drop_path import DropPath


def projection(name, inputs, outputs, scale=1.0, **options):
    """Returns a built dense layer without bias. The initial kernel is as in PyTorch's `Linear`, times `scale`."""
    limit = scale / math.sqrt(inputs)
    kernel = initializers.RandomUniform(-limit, limit)
    layer = Dense(outputs, use_bias=False, kernel_initializer=kernel, name=name, **options)
    layer.build((None, None, inputs))
    return layer


def flat(feature_map):
    """Returns the pixels of a feature map, (batch, height * width, channels)."""
    _, height, width, channels = ops.shape(feature_map)
    return ops.reshape(feature_map, (-1, height * width, channels))


def products(queries, keys):
    """Returns the dot products of queries, (batch, n, width), and keys, (batch, m, width), as float32 (batch, n, m)."""
    # float16 could overflow, because the products are not divided by the square root of the width.
    queries, keys = ops.cast(queries, "float32"), ops.cast(keys, "float32")
    return ops.matmul(queries, ops.transpose(keys, (0, 2, 1)))


def softmax_weights(scores, dtype):
    """Returns the softmax of scores over the last axis, computed in float32."""
    return ops.cast(ops.softmax(ops.cast(scores, "float32"), axis=-1), dtype)


class Tokenizer(CompositeLayer):
    """Base class of layers that pool the pixels X of a feature map into visual tokens, `T = softmax_HW(scores)^T X`.

    `softmax_HW` is the softmax over all pixels. `token_dim` is the width of a token. None: the width of the feature
    map. If the two widths differ, the tokens are `T W_V` instead of T. With `return_attention_scores`, the attention
    weights, (batch, num_tokens, height, width), are returned too.
    """

    def __init__(self, token_dim=None, **kwargs):
        super().__init__(**kwargs)
        self.token_dim = arguments.optional(arguments.positive_int, "token_dim", token_dim)

    def build(self, feature_map_shape, tokens_shape=None):
        channels = feature_map_shape[-1]
        self.build_filters(channels, tokens_shape)
        same = self.token_dim in (None, channels)
        self.value = None if same else projection("value", channels, self.token_dim, **self.inherited)
        self.restore_changes()

    def dense_layers(self):
        return () if self.value is None else (self.value,)

    def call(self, feature_map, tokens=None, return_attention_scores=False):
        weights = softmax_weights(self.scores(flat(feature_map), tokens), self.compute_dtype)
        pooled = ops.matmul(weights, flat(feature_map))
        if self.value is not None:
            pooled = self.value(pooled)
        if not return_attention_scores:
            return pooled
        return pooled, ops.reshape(weights, (-1, weights.shape[1], *ops.shape(feature_map)[1:3]))

    def compute_output_shape(self, feature_map_shape, tokens_shape=None):
        num_tokens = self.num_tokens if tokens_shape is None else tokens_shape[1]
        return feature_map_shape[0], num_tokens, self.token_dim or feature_map_shape[-1]

    def compute_output_spec(self, feature_map, tokens=None, return_attention_scores=False):
        batch, num_tokens, _ = shape = self.compute_output_shape(feature_map.shape, getattr(tokens, "shape", None))
        scores = [(batch, num_tokens, *feature_map.shape[1:3])] if return_attention_scores else []
        return self.spec(shape, *scores)


@keras.saving.register_keras_serializable(package="keras_vit")
class FilterTokenizer(Tokenizer):
    """A `Tokenizer` with the scores `X W_A`. Each column of `W_A` is the learned filter of one token.

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 3.1.1. The equation has no `W_V`, but the
    appendix needs one, because its tokens are wider than the feature map. The paper does not specify initial weights.
    The weights are initialized like PyTorch's linear layers.
    """

    def __init__(self, num_tokens, token_dim=None, **kwargs):
        super().__init__(token_dim, **kwargs)
        self.num_tokens = arguments.positive_int("num_tokens", num_tokens)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build_filters(self, channels, tokens_shape):
        self.filters = projection("filters", channels, self.num_tokens, **self.inherited)

    def dense_layers(self):
        return self.filters, *super().dense_layers()

    def scores(self, pixels, tokens):
        return ops.transpose(self.filters(pixels), (0, 2, 1))


@keras.saving.register_keras_serializable(package="keras_vit")
class RecurrentTokenizer(Tokenizer):
    """A `Tokenizer` with the scores `X (T_in W_TR)^T`. The tokens T_in of the previous module determine the filters.

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 3.1.2. The weights are initialized like
    PyTorch's linear layers. In addition, the initial `W_TR` is divided by the square root of the number of channels, so
    that the softmax is not saturated when training begins.
    """

    def build_filters(self, channels, tokens_shape):
        self.to_filters = projection("to_filters", tokens_shape[-1], channels, channels**-0.5, **self.inherited)

    def dense_layers(self):
        return self.to_filters, *super().dense_layers()

    def scores(self, pixels, tokens):
        return products(self.to_filters(tokens), pixels)


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenTransformer(CompositeLayer):
    """The transformer of a VT module: `T' = T + softmax_L((T K)(T Q)^T) T`, then `T' + relu(T' F1) F2`.

    `softmax_L` is the softmax over the tokens. The attention has one head. There are no norms, biases or value
    projections, and the scores are not divided by the square root of `key_dim`, the width of `T K` and `T Q`. If
    `key_dim` is None, this width is the width of the tokens.

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 3.2. The attention in the paper's
    appendix differs: it has a value projection, grouped convolutions and more than one head. No shape of `K` and `Q`
    agrees with all tables of the paper. The weights are initialized like PyTorch's linear layers. In addition, the
    initial `K` and `Q` are each divided by the fourth root of `key_dim`. When training begins, the scores are therefore
    as large as in scaled attention.
    """

    def __init__(self, key_dim=None, drop_path_rate=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.key_dim = arguments.optional(arguments.positive_int, "key_dim", key_dim)
        self.drop_path_rate = arguments.rate("drop_path_rate", drop_path_rate)
        self.seed = seed
        self.drop_path_1, self.drop_path_2 = (
            DropPath(self.drop_path_rate, seed=s, dtype=self.dtype_policy, name=f"drop_path_{i}")
            for i, s in enumerate(arguments.seeds(seed, 2), start=1)
        )
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, tokens_shape):
        token_dim = tokens_shape[-1]
        key_dim = self.key_dim or token_dim
        self.key = projection("key", token_dim, key_dim, key_dim**-0.25, **self.inherited)
        self.query = projection("query", token_dim, key_dim, key_dim**-0.25, **self.inherited)
        self.dense_1 = projection("dense_1", token_dim, token_dim, **self.inherited)
        self.dense_2 = projection("dense_2", token_dim, token_dim, **self.inherited)
        for layer in (self.drop_path_1, self.drop_path_2):
            layer.build(tokens_shape)
        self.restore_changes()

    def dense_layers(self):
        return self.key, self.query, self.dense_1, self.dense_2

    def call(self, tokens, training=None):
        weights = softmax_weights(products(self.key(tokens), self.query(tokens)), self.compute_dtype)
        tokens = tokens + self.drop_path_1(ops.matmul(weights, tokens), training=training)
        x = self.dense_2(ops.relu(self.dense_1(tokens)))
        return tokens + self.drop_path_2(x, training=training)


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenProjector(CompositeLayer):
    """Adds visual tokens T to the pixels X of a feature map: `X + softmax_L((X W_Q)(T W_K)^T) T`.

    `softmax_L` is the softmax over the tokens. `key_dim` is the width of `X W_Q` and `T W_K`. If it is None, this width
    is the width of the feature map. If the tokens are not as wide as the feature map, `T W_V` replaces the last T in
    the equation. `W_V` projects the tokens to the width of the feature map.

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 3.3. The equation has no `W_V`, but tokens
    that are wider than the feature map need one. The initial weights are as in `TokenTransformer`.
    """

    def __init__(self, key_dim=None, drop_path_rate=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.key_dim = arguments.optional(arguments.positive_int, "key_dim", key_dim)
        self.drop_path_rate = arguments.rate("drop_path_rate", drop_path_rate)
        self.seed = seed
        self.drop_path = DropPath(self.drop_path_rate, seed=seed, dtype=self.dtype_policy, name="drop_path")

    def build(self, feature_map_shape, tokens_shape):
        channels, token_dim = feature_map_shape[-1], tokens_shape[-1]
        key_dim = self.key_dim or channels
        self.query = projection("query", channels, key_dim, key_dim**-0.25, **self.inherited)
        self.key = projection("key", token_dim, key_dim, key_dim**-0.25, **self.inherited)
        self.value = None if token_dim == channels else projection("value", token_dim, channels, **self.inherited)
        self.drop_path.build(feature_map_shape)
        self.restore_changes()

    def dense_layers(self):
        return tuple(layer for layer in (self.query, self.key, self.value) if layer is not None)

    def call(self, feature_map, tokens, training=None):
        weights = softmax_weights(products(self.query(flat(feature_map)), self.key(tokens)), self.compute_dtype)
        if self.value is not None:
            tokens = self.value(tokens)
        x = self.drop_path(ops.matmul(weights, tokens), training=training)
        return feature_map + ops.reshape(x, ops.shape(feature_map))

    def compute_output_shape(self, feature_map_shape, tokens_shape):
        return feature_map_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class VTModule(CompositeLayer):
    """A module of a token-based Visual Transformer: tokenizer, transformer and projector.

    With `recurrent`, the tokenizer is a `RecurrentTokenizer`, which needs the tokens of the previous module. The last
    module of a model has project=False, which omits the projector, because the head reads only the tokens. The output
    is a tuple of the new feature map and the new tokens, or only the new tokens if there is no projector.

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 3 and figure 2.
    """

    def __init__(
        self,
        num_tokens,
        token_dim=None,
        key_dim=None,
        recurrent=False,
        project=True,
        drop_path_rate=0.0,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_tokens = arguments.positive_int("num_tokens", num_tokens)
        self.token_dim = arguments.optional(arguments.positive_int, "token_dim", token_dim)
        self.key_dim = arguments.optional(arguments.positive_int, "key_dim", key_dim)
        self.recurrent = arguments.boolean("recurrent", recurrent)
        self.project = arguments.boolean("project", project)
        self.drop_path_rate = arguments.rate("drop_path_rate", drop_path_rate)
        self.seed = seed
        first, last = arguments.seeds(seed, 2)
        options = {"name": "tokenizer", **self.inherited}
        if self.recurrent:
            self.tokenizer = RecurrentTokenizer(self.token_dim, **options)
        else:
            self.tokenizer = FilterTokenizer(self.num_tokens, self.token_dim, **options)
        self.transformer = TokenTransformer(key_dim, drop_path_rate, first, name="transformer", **self.inherited)
        self.projector = None
        if self.project:
            self.projector = TokenProjector(key_dim, drop_path_rate, last, name="projector", **self.inherited)

    def build(self, feature_map_shape, tokens_shape=None):
        self._check(tokens_shape)
        self.tokenizer.build(feature_map_shape, tokens_shape)
        shape = self.tokenizer.compute_output_shape(feature_map_shape, tokens_shape)
        self.transformer.build(shape)
        if self.projector is not None:
            self.projector.build(feature_map_shape, shape)
        self.restore_changes()

    def _check(self, tokens_shape):
        number = self.num_tokens if self.recurrent else None
        if (None if tokens_shape is None else tokens_shape[1]) != number:
            expected = f"of shape (batch, {number}, token_dim)" if self.recurrent else "to be None with recurrent=False"
            raise ValueError(f"Expected `tokens` {expected}. Received: tokens of shape {tokens_shape}")

    def dense_layers(self):
        parts = (self.tokenizer, self.transformer, self.projector)
        return tuple(dense for part in parts if part is not None for dense in part.dense_layers())

    def call(self, feature_map, tokens=None, training=None, return_attention_scores=False):
        tokens, weights = self.tokenizer(feature_map, tokens, return_attention_scores=True)
        tokens = self.transformer(tokens, training=training)
        outputs = [tokens, weights] if return_attention_scores else [tokens]
        if self.projector is not None:
            outputs.insert(0, self.projector(feature_map, tokens, training=training))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def compute_output_shape(self, feature_map_shape, tokens_shape=None):
        shape = feature_map_shape[0], self.num_tokens, self.token_dim or feature_map_shape[-1]
        return shape if self.projector is None else (feature_map_shape, shape)
