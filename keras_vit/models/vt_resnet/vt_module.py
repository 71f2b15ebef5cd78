import keras

from keras_vit import arguments
from keras_vit.layers.base import CompositeLayer
from keras_vit.models.vt_resnet.filter_tokenizer import FilterTokenizer
from keras_vit.models.vt_resnet.recurrent_tokenizer import RecurrentTokenizer
from keras_vit.models.vt_resnet.token_projector import TokenProjector
from keras_vit.models.vt_resnet.token_transformer import TokenTransformer


@keras.saving.register_keras_serializable(package="keras_vit")
class VTModule(CompositeLayer):
    """A module of a token-based Visual Transformer: tokenizer, transformer and projector.

    Args:
        num_tokens: Int, the number of visual tokens.
        token_dim: Int, their width. None: that of the feature map.
        key_dim: Int, the width of keys and queries, as in `TokenTransformer` and `TokenProjector`.
        recurrent: Bool; True for a `RecurrentTokenizer`, which needs the previous module's tokens, False for a
            `FilterTokenizer`.
        project: Bool; False leaves out the projector, as in a last module, whose tokens alone are read.
        drop_path_rate: Float in [0, 1), the probability of dropping a residual branch per image.
        seed: Int or None, the random seed of the stochastic depth.

    Call arguments:
        feature_map: (batch, height, width, channels), of any height and width.
        tokens: (batch, num_tokens, token_dim), the previous module's; only with `recurrent`.
        return_attention_scores: Bool, whether to return the tokenizer's weights too.

    Returns:
        The feature map, of the same shape, only with `project`; the tokens, (batch, num_tokens, token_dim); and the
        weights, (batch, num_tokens, height, width), if requested.

    Raises:
        ValueError: If an argument is out of range, or `tokens` are given without `recurrent`, missing with it, or not
            `num_tokens`.

    Example:

    >>> feature_map, tokens = VTModule(16, 1024)(np.zeros((1, 14, 14, 256)))
    >>> feature_map.shape, tokens.shape
    ((1, 14, 14, 256), (1, 16, 1024))

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
        shapes = feature_map_shape, *(() if tokens_shape is None else (tokens_shape,))
        self.tokenizer.build(*shapes)
        shape = self.tokenizer.compute_output_shape(*shapes)
        self.transformer.build(shape)
        if self.projector is not None:
            self.projector.build(feature_map_shape, shape)
        self.restore_changes()

    def _check(self, tokens_shape):
        number = self.num_tokens if self.recurrent else None
        if (None if tokens_shape is None else tokens_shape[1]) != number:
            expected = f"of shape (batch, {number}, token_dim)" if self.recurrent else "None with recurrent=False"
            raise ValueError(f"Expected `tokens` {expected}. Received: tokens of shape {tokens_shape}")

    def dense_layers(self):
        parts = (self.tokenizer, self.transformer, self.projector)
        return tuple(dense for part in parts if part is not None for dense in part.dense_layers())

    def call(self, feature_map, tokens=None, training=None, return_attention_scores=False):
        inputs = (feature_map,) if tokens is None else (feature_map, tokens)
        tokens, weights = self.tokenizer(*inputs, return_attention_scores=True)
        tokens = self.transformer(tokens, training=training)
        outputs = [tokens, weights] if return_attention_scores else [tokens]
        if self.projector is not None:
            outputs.insert(0, self.projector(feature_map, tokens, training=training))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def compute_output_shape(self, feature_map_shape, tokens_shape=None):
        shape = feature_map_shape[0], self.num_tokens, self.token_dim or feature_map_shape[-1]
        return shape if self.projector is None else (feature_map_shape, shape)
