import keras
from keras import ops

from keras_vit import activations, arguments
from keras_vit.layers import initializers
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.dense import Dense
from keras_vit.layers.kernels import activate
from keras_vit.layers.layer_norm import LayerNorm


@keras.saving.register_keras_serializable(package="keras_vit")
class MLP(CompositeLayer):
    """The MLP of a transformer block: a wide dense layer, an activation and a dense layer back to the input's width.

    With `gated`, the first dense layer has `2 * mlp_dim` outputs instead of `mlp_dim`. The activation is applied to the
    first half of the outputs, and the result is multiplied by the second half. With activation="silu", this is SwiGLU.

    Args:
        mlp_dim: Int, the hidden width.
        activation: "gelu_tanh" (tanh approximation, as in the official Flax code), "gelu" (exact, as in timm, DeiT and
            Hugging Face) or any Keras activation.
        dropout_rate: Float in [0, 1), the dropout after each dense layer.
        gated: Bool, whether the hidden layer is gated.
        inner_norm: Bool, whether to layer-normalize the hidden layer.
        layer_norm_epsilon: Float, the epsilon of the norm of the hidden layer.
        seed: Int or None, the random seed of the dropout.

    Input and output shape: (batch, num_tokens, hidden_dim).

    Example:
    >>> keras_vit.layers.MLP(3072)(np.zeros((1, 197, 768))).shape
    (1, 197, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), equation 3; gated: [arXiv
    2002.05202](https://arxiv.org/abs/2002.05202); inner norm: [arXiv 2303.11331](https://arxiv.org/abs/2303.11331).
    Initialized as in the official Flax code: Xavier uniform kernels, biases normal with standard deviation 1e-6.
    """

    def __init__(
        self,
        mlp_dim,
        activation="gelu_tanh",
        dropout_rate=0.0,
        seed=None,
        gated=False,
        inner_norm=False,
        layer_norm_epsilon=1e-6,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.mlp_dim = arguments.positive_int("mlp_dim", mlp_dim)
        self.activation = activations.get(activation)
        self.dropout_rate = arguments.rate("dropout_rate", dropout_rate)
        self.seed = seed
        self.set_booleans(gated=gated, inner_norm=inner_norm)
        self.layer_norm_epsilon = arguments.epsilon("layer_norm_epsilon", layer_norm_epsilon)
        self.dropout_1, self.dropout_2 = (
            self.dropout_layer(keras.layers.Dropout, self.dropout_rate, s, f"dropout_{i}")
            for i, s in enumerate(arguments.seeds(seed, 2), start=1)
        )

    def build(self, tokens_shape):
        if self.gated:
            self.dense_1 = self._dense(2 * self.mlp_dim, "dense_1")
        else:
            self.dense_1 = self._dense(self.mlp_dim, "dense_1", activation=self.activation)
        if self.inner_norm:
            self.norm = LayerNorm(epsilon=self.layer_norm_epsilon, name="norm", **self.inherited)
            self.norm.build((*tokens_shape[:-1], self.mlp_dim))
        self.dense_2 = self._dense(tokens_shape[-1], "dense_2")
        self.dense_1.build(tokens_shape)
        self.dense_2.build((*tokens_shape[:-1], self.mlp_dim))
        if self.dropout_rate:
            self.dropout_1.build((*tokens_shape[:-1], self.mlp_dim))
            self.dropout_2.build(tokens_shape)
        self.restore_changes()

    def dense_layers(self):
        return self.dense_1, self.dense_2

    def _dense(self, units, name, **kwargs):
        kernel, bias = initializers.GlorotUniform(), initializers.RandomNormal(stddev=1e-6)
        options = {"kernel_initializer": kernel, "bias_initializer": bias, **self.inherited}
        return Dense(units, name=name, **options, **kwargs)

    def call(self, tokens, training=None):
        x = self.run(self.dense_1, tokens)
        if self.gated:
            gate, x = ops.split(x, 2, axis=-1)
            x = activate(gate, self.activation) * x
        if self.inner_norm:
            x = self.run(self.norm, x)
        if not self.dropout_rate:
            return self.run(self.dense_2, x)
        x = self.run(self.dropout_1, x, training=training)
        return self.run(self.dropout_2, self.run(self.dense_2, x), training=training)
