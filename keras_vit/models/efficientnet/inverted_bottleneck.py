import math

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.config import PADDINGS
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.batch_norm import BatchNorm
from keras_vit.layers.downsampling import conv, convolve
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.initializers import FanOutNormal
from keras_vit.layers.squeeze_excitation import SqueezeExcitation

MOMENTUM = 0.99


def batch_norm(name, epsilon, **kwargs):
    """Returns a batch normalization layer with EfficientNet's momentum."""
    return BatchNorm(momentum=MOMENTUM, epsilon=epsilon, name=name, **kwargs)


@keras.saving.register_keras_serializable(package="keras_vit")
class InvertedBottleneck(CompositeLayer):
    """The MBConv block of EfficientNet: a residual branch that is wider inside, with a depthwise convolution.

    The branch is a 1 x 1 convolution to `expansion` times the channels, a depthwise convolution, squeeze-and-excitation
    and a 1 x 1 convolution. A batch normalization follows each convolution, and swish follows the first two batch
    normalizations. If the input has the same shape as the output, the input is added to the output.

    `expansion` is the inner width relative to the input width. If it is 1, the first convolution is omitted.

    Reference: [arXiv 1801.04381](https://arxiv.org/abs/1801.04381), section 3.2, with the squeeze-and-excitation of
    [arXiv 1905.11946](https://arxiv.org/abs/1905.11946), section 4. The inner width of the squeeze-and-excitation
    is a quarter of the block's input width.
    """

    def __init__(
        self,
        filters,
        kernel_size,
        strides=1,
        expansion=6,
        padding="same",
        epsilon=1e-3,
        drop_path_rate=0.0,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = arguments.positive_int("filters", filters)
        self.kernel_size = arguments.positive_int("kernel_size", kernel_size)
        if self.kernel_size % 2 == 0:
            raise arguments.invalid("kernel_size", "an odd number", kernel_size)
        self.strides = arguments.positive_int("strides", strides)
        self.expansion = arguments.positive_int("expansion", expansion)
        self.padding = arguments.choice("padding", padding, PADDINGS)
        self.epsilon = arguments.epsilon("epsilon", epsilon)
        self.drop_path_rate = arguments.rate("drop_path_rate", drop_path_rate)
        self.seed = seed
        self.drop_path = DropPath(self.drop_path_rate, seed=seed, name="drop_path", **self.inherited)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def _pointwise(self, name, filters):
        return conv(keras.layers.Conv2D, 1, 1, "same", filters=filters, name=name, **self.inherited)

    def build(self, images_shape):
        channels = images_shape[-1]
        inside = channels * self.expansion
        shape = (None, None, None, channels)
        self.expand_conv = self.expand_norm = None
        if self.expansion > 1:
            self.expand_conv = self._pointwise("expand_conv", inside)
            self.expand_norm = batch_norm("expand_norm", self.epsilon, **self.inherited)
            self.expand_conv.build(shape)
            shape = (None, None, None, inside)
            self.expand_norm.build(shape)
        options = {"name": "depthwise_conv", **self.inherited}
        self.depthwise_conv = conv(
            keras.layers.DepthwiseConv2D, self.kernel_size, self.strides, self.padding, **options
        )
        self.depthwise_norm = batch_norm("depthwise_norm", self.epsilon, **self.inherited)
        self.squeeze_excitation = SqueezeExcitation(
            max(1, channels // 4), kernel_initializer=FanOutNormal(), name="squeeze_excitation", **self.inherited
        )
        self.project_conv = self._pointwise("project_conv", self.filters)
        self.project_norm = batch_norm("project_norm", self.epsilon, **self.inherited)
        for layer in (self.depthwise_conv, self.depthwise_norm, self.squeeze_excitation, self.project_conv):
            layer.build(shape)
        for layer in (self.project_norm, self.drop_path):
            layer.build((None, None, None, self.filters))
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: channels})
        self.restore_changes()

    def dense_layers(self):
        return [self.squeeze_excitation.reduce, self.squeeze_excitation.expand]

    def call(self, images, training=None):
        x = images
        if self.expand_conv is not None:
            x = ops.silu(self.expand_norm(self.expand_conv(x), training=training))
        x = ops.silu(self.depthwise_norm(convolve(self.depthwise_conv, x), training=training))
        x = self.project_conv(self.squeeze_excitation(x))
        x = self.project_norm(x, training=training)
        if self.strides > 1 or self.filters != images.shape[-1]:
            return x
        return images + self.drop_path(x, training=training)

    def compute_output_shape(self, images_shape):
        batch, *sides, _ = images_shape
        return batch, *(None if side is None else math.ceil(side / self.strides) for side in sides), self.filters
