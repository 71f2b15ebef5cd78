import keras

from keras_vit.layers import arguments
from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.mlp import MLP


@keras.saving.register_keras_serializable(package="keras_vit")
class TransformerBlock(keras.layers.Layer):
    """A pre-norm transformer encoder block: `x += attention(norm(x)); x += mlp(norm(x))`.

    Args:
        num_heads: Int, the number of attention heads.
        mlp_dim: Int, the hidden width of the feed-forward part.
        dropout_rate: Float in [0, 1), the dropout after the attention and in the feed-forward part.
        attention_dropout_rate: Float in [0, 1), the dropout on the attention weights.
        drop_path_rate: Float in [0, 1), the probability that a residual branch is dropped for an image (stochastic
            depth).
        layer_scale_init: Float or None: the initial value of a learned scale of each branch, None for no scale.
        qk_norm: Bool, whether queries and keys are layer-normalised.
        activation: "gelu_tanh", "gelu" (exact) or any Keras activation.
        layer_norm_epsilon: Float, the epsilon of the norms.
        max_relative_distance: Int or None, the reach of relative position embeddings, as in MultiHeadSelfAttention.
        seed: Int or None, the random seed of all dropout.

    Call arguments:
        tokens: (batch, num_tokens, hidden_dim).
        training: Bool; dropout acts in training only.
        return_attention_scores: Bool, whether to return the attention weights too.

    Returns:
        (batch, num_tokens, hidden_dim), and with `return_attention_scores=True` also the weights, (batch, num_heads,
        num_tokens, num_tokens).

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    >>> keras_vit.layers.TransformerBlock(num_heads=12, mlp_dim=3072)(np.zeros((1, 197, 768))).shape
    (1, 197, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), equations 2 and 3.
    """

    def __init__(
        self,
        num_heads,
        mlp_dim,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        drop_path_rate=0.0,
        layer_scale_init=None,
        qk_norm=False,
        activation="gelu_tanh",
        layer_norm_epsilon=1e-6,
        max_relative_distance=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if layer_scale_init is not None:
            layer_scale_init = arguments.number("layer_scale_init", layer_scale_init)
        self.layer_scale_init = layer_scale_init
        self.drop_path_rate = arguments.rate("drop_path_rate", drop_path_rate)
        self.layer_norm_epsilon = arguments.positive_number("layer_norm_epsilon", layer_norm_epsilon)
        self.seed = seed
        attention_seed, dropout_seed, path_1_seed, path_2_seed, mlp_seed = arguments.seeds(seed, 5)
        self.norm_1 = self._norm("norm_1")
        self.attention = MultiHeadSelfAttention(
            num_heads,
            dropout_rate=arguments.rate("attention_dropout_rate", attention_dropout_rate),
            qk_norm=qk_norm,
            layer_norm_epsilon=layer_norm_epsilon,
            max_relative_distance=max_relative_distance,
            seed=attention_seed,
            # A frozen layer that is loaded again tells its sublayers by this alone.
            trainable=self.trainable,
            dtype=self.dtype_policy,
            name="attention",
        )
        self.dropout = keras.layers.Dropout(
            arguments.rate("dropout_rate", dropout_rate), seed=dropout_seed, dtype=self.dtype_policy, name="dropout"
        )
        self.layer_scale_1 = self._layer_scale("layer_scale_1")
        self.drop_path_1 = DropPath(drop_path_rate, seed=path_1_seed, dtype=self.dtype_policy, name="drop_path_1")
        self.norm_2 = self._norm("norm_2")
        self.mlp = MLP(
            mlp_dim,
            activation=activation,
            dropout_rate=dropout_rate,
            seed=mlp_seed,
            trainable=self.trainable,
            dtype=self.dtype_policy,
            name="mlp",
        )
        self.layer_scale_2 = self._layer_scale("layer_scale_2")
        self.drop_path_2 = DropPath(drop_path_rate, seed=path_2_seed, dtype=self.dtype_policy, name="drop_path_2")
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def _norm(self, name):
        return keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, trainable=self.trainable, dtype=self.dtype_policy, name=name
        )

    def _layer_scale(self, name):
        if self.layer_scale_init is None:
            return None
        return LayerScale(self.layer_scale_init, trainable=self.trainable, dtype=self.dtype_policy, name=name)

    def build(self, tokens_shape):
        for layer in (self.norm_1, self.attention, self.layer_scale_1, self.norm_2, self.mlp, self.layer_scale_2):
            if layer is not None:
                layer.build(tokens_shape)

    def call(self, tokens, training=None, return_attention_scores=False):
        x, scores = self.norm_1(tokens), None
        if return_attention_scores:
            x, scores = self.attention(x, training=training, return_attention_scores=True)
        else:
            x = self.attention(x, training=training)
        if self.dropout.rate:
            x = self.dropout(x, training=training)
        tokens = tokens + self._branch(x, self.layer_scale_1, self.drop_path_1, training)
        x = self.mlp(self.norm_2(tokens), training=training)
        tokens = tokens + self._branch(x, self.layer_scale_2, self.drop_path_2, training)
        return (tokens, scores) if return_attention_scores else tokens

    def _branch(self, x, layer_scale, drop_path, training):
        if layer_scale is not None:
            x = layer_scale(x)
        return drop_path(x, training=training) if drop_path.rate else x

    def compute_output_shape(self, tokens_shape):
        return tokens_shape

    def compute_output_spec(self, tokens, training=None, return_attention_scores=False):
        return self.attention.compute_output_spec(tokens, return_attention_scores=return_attention_scores)

    def get_config(self):
        attention = self.attention
        mlp = self.mlp.get_config()
        return {
            **super().get_config(),
            "num_heads": attention.num_heads,
            "mlp_dim": mlp["mlp_dim"],
            "dropout_rate": mlp["dropout_rate"],
            "attention_dropout_rate": attention.dropout_rate,
            "drop_path_rate": self.drop_path_rate,
            "layer_scale_init": self.layer_scale_init,
            "qk_norm": attention.qk_norm,
            "activation": mlp["activation"],
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "max_relative_distance": attention.max_relative_distance,
            "seed": self.seed,
        }
