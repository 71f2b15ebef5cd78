import keras

from keras_vit import activations, arguments
from keras_vit.layers.base import Layer
from keras_vit.layers.dense import Dense


@keras.saving.register_keras_serializable(package="keras_vit")
class SqueezeExcitation(Layer):
    """Multiplies each channel by a number in 0..1, which two dense layers compute from the means of all channels.

    The first dense layer has `reduced_dim` units.

    Reference: [arXiv 1709.01507](https://arxiv.org/abs/1709.01507), section 3.
    """

    adds_up = True

    def __init__(self, reduced_dim, activation="silu", kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.reduced_dim = arguments.positive_int("reduced_dim", reduced_dim)
        self.activation = activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, images_shape):
        channels = images_shape[-1]
        pooling = {"data_format": "channels_last", "keepdims": True, "name": "mean", **self.inherited}
        self.mean = keras.layers.GlobalAveragePooling2D(**pooling)
        self.mean.build(images_shape)
        self.reduce = Dense(self.reduced_dim, activation=self.activation, name="reduce", **self._dense_options())
        self.expand = Dense(channels, activation="sigmoid", name="expand", **self._dense_options())
        self.reduce.build((None, 1, 1, channels))
        self.expand.build((None, 1, 1, self.reduced_dim))

    def _dense_options(self):
        # Use a copy of the initializer for each kernel, because an initializer returns the same numbers at every call.
        initializer = keras.initializers.get(keras.initializers.serialize(self.kernel_initializer))
        return {"kernel_initializer": initializer, **self.inherited}

    def call(self, images):
        return images * self.expand(self.reduce(self.mean(images)))
