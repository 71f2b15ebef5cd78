import keras
from keras import ops

from keras_vit import arguments


@keras.saving.register_keras_serializable(package="keras_vit")
class DropPath(keras.layers.Dropout):
    """Stochastic depth: in training, sets the input to zero for random images.

    The inputs of all other images are divided by `1 - rate`.

    Args:
        rate: Float in [0, 1), the probability that the input of an image is set to zero.
        seed: Int or None, the random seed.

    Input and output shape: (batch, ...), such as tokens, (batch, num_tokens, hidden_dim), or feature maps.

    Example:
    >>> y = keras_vit.layers.DropPath(0.5, seed=0)(np.ones((8, 2, 3)), training=True)
    >>> sorted(set(np.ravel(y).tolist()))
    [0.0, 2.0]

    Reference: [arXiv 1603.09382](https://arxiv.org/abs/1603.09382), section 3.
    """

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(arguments.rate("rate", rate), None, arguments.seeds(seed, 1)[0], **kwargs)
        self.seed = seed

    def call(self, inputs, training=False):
        if not training or not self.rate:
            return inputs
        ones = ops.ones((ops.shape(inputs)[0], *[1] * (len(inputs.shape) - 1)), inputs.dtype)
        return inputs * keras.random.dropout(ones, self.rate, seed=self.seed_generator)

    def get_config(self):
        config = super().get_config()
        del config["noise_shape"]
        return config
