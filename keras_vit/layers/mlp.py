import keras

from keras_vit import activations, arguments
from keras_vit.layers import initializers
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.dense import Dense


@keras.saving.register_keras_serializable(package="keras_vit")
class MLP(CompositeLayer):
    """The MLP of a transformer block: a wide dense layer, an activation and a dense layer back to the input's width.

    Args:
        mlp_dim: Int, the hidden width.
        activation: "gelu_tanh" (tanh approximation, as in the official Flax code), "gelu" (exact, as in timm, DeiT and
            Hugging Face) or any Keras activation.
        dropout_rate: Float in [0, 1), the dropout after each dense layer.
        seed: Int or None, the random seed of the dropout.

    Input and output shape: (batch, num_tokens, hidden_dim).

    Example:

    >>> keras_vit.layers.MLP(3072)(np.zeros((1, 197, 768))).shape
    (1, 197, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), equation 3. Initialized as in the official Flax
    code: Xavier uniform kernels, biases normal with standard deviation 1e-6.
    """

    def __init__(self, mlp_dim, activation="gelu_tanh", dropout_rate=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.mlp_dim = arguments.positive_int("mlp_dim", mlp_dim)
        self.activation = activations.get(activation)
        self.dropout_rate = arguments.rate("dropout_rate", dropout_rate)
        self.seed = seed
        self.dropout_1, self.dropout_2 = (
            keras.layers.Dropout(self.dropout_rate, seed=s, dtype=self.dtype_policy, name=f"dropout_{i}")
            for i, s in enumerate(arguments.seeds(seed, 2), start=1)
        )

    def build(self, tokens_shape):
        # At inference TensorFlow fuses the activation with matmul and bias.
        self.dense_1 = self._dense(self.mlp_dim, "dense_1", activation=self.activation)
        self.dense_2 = self._dense(tokens_shape[-1], "dense_2")
        self.dense_1.build(tokens_shape)
        self.dense_2.build((*tokens_shape[:-1], self.mlp_dim))
        self.restore_changes()

    def dense_layers(self):
        return self.dense_1, self.dense_2

    def _dense(self, units, name, **kwargs):
        kernel, bias = initializers.GlorotUniform(), initializers.RandomNormal(stddev=1e-6)
        options = {"kernel_initializer": kernel, "bias_initializer": bias, **self.inherited}
        return Dense(units, name=name, **options, **kwargs)

    def call(self, tokens, training=None):
        x = self.dense_1(tokens)
        # Calling a no-op layer costs time on PyTorch.
        if not self.dropout_rate:
            return self.dense_2(x)
        x = self.dropout_1(x, training=training)
        return self.dropout_2(self.dense_2(x), training=training)
