import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import Layer


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerScale(Layer):
    """Multiplies each channel by a learned factor.

    Args:
        init_value: Float, the initial value of the factors.

    Input and output shape: (..., hidden_dim).

    Example:
    >>> float(keras_vit.layers.LayerScale(0.5)(np.ones((1, 2, 3)))[0, 0, 0])
    0.5

    Reference: [arXiv 2103.17239](https://arxiv.org/abs/2103.17239), section 2.1.
    """

    def __init__(self, init_value=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.init_value = arguments.number("init_value", init_value)

    def build(self, tokens_shape):
        self.gamma = self.add_weight(tokens_shape[-1:], keras.initializers.Constant(self.init_value), name="gamma")

    def call(self, tokens):
        return tokens * ops.cast(self.gamma, self.compute_dtype)
