import keras

from keras_vit import activations, arguments
from keras_vit.config import PADDINGS
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.batch_norm import BatchNorm
from keras_vit.layers.dense import Dense
from keras_vit.layers.downsampling import conv, convolve, pooling
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.initializers import FanOutNormal
from keras_vit.layers.squeeze_excitation import SqueezeExcitation
from keras_vit.models.coatnet.config import DOWNSAMPLINGS, POOL_TYPES


@keras.saving.register_keras_serializable(package="keras_vit")
class MBConv(CompositeLayer):
    """CoAtNet's inverted bottleneck: norm, 1 x 1 expansion, depthwise 3 x 3, squeeze-and-excitation, 1 x 1 projection.

    Each convolution but the last is followed by batch normalization and an activation. A 1 x 1 convolution projects the
    shortcut if the number of channels changes.

    The arguments are as in `CoAtNetConfig`, except for three numbers of channels: `filters` in the output, `hidden_dim`
    after the expansion, and `reduced_dim` inside squeeze-and-excitation. `activation` follows the expansion, the
    depthwise convolution and, with `pre_norm_activation`, the first norm.

    Reference: [arXiv 2106.04803](https://arxiv.org/abs/2106.04803), section 2.1 and appendix A.1. The paper does not
    state the window of the max pooling, or whether a shortcut with equal channels is projected. This layer uses 2 x 2
    and no projection. Initialized as in EfficientNet's code: normal kernels with variance 2 / fan_out.
    """

    def __init__(
        self,
        filters,
        hidden_dim,
        reduced_dim,
        strides=1,
        downsampling="expansion",
        pool_type="max2",
        padding="same",
        activation="gelu",
        pre_norm_activation=False,
        use_bias=True,
        se_activation="silu",
        se_before_norm=False,
        epsilon=1e-5,
        drop_path_rate=0.0,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = arguments.positive_int("filters", filters)
        self.hidden_dim = arguments.positive_int("hidden_dim", hidden_dim)
        self.reduced_dim = arguments.positive_int("reduced_dim", reduced_dim)
        self.strides = arguments.choice("strides", strides, (1, 2))
        self.downsampling = arguments.choice("downsampling", downsampling, DOWNSAMPLINGS)
        self.pool_type = arguments.choice("pool_type", pool_type, POOL_TYPES)
        self.padding = arguments.choice("padding", padding, PADDINGS)
        self.activation, self.se_activation = activations.get(activation), activations.get(se_activation)
        self.set_booleans(pre_norm_activation=pre_norm_activation, use_bias=use_bias, se_before_norm=se_before_norm)
        self.epsilon = arguments.epsilon("epsilon", epsilon)
        self.drop_path_rate = arguments.rate("drop_path_rate", drop_path_rate)
        self.seed = seed
        self.pre_norm, self.expand_norm, self.depthwise_norm = (
            BatchNorm(momentum=0.9, epsilon=epsilon, name=name, **self.inherited)
            for name in ("pre_norm", "expand_norm", "depthwise_norm")
        )
        self.expand = self._dense("expand", hidden_dim, use_bias=False)
        self.depthwise = conv(
            keras.layers.DepthwiseConv2D,
            3,
            strides if downsampling == "depthwise" else 1,
            padding,
            name="depthwise",
            **self.inherited,
        )
        self.se = SqueezeExcitation(
            reduced_dim, se_activation, kernel_initializer=FanOutNormal(), name="se", **self.inherited
        )
        self.project = self._dense("project", filters, use_bias=use_bias)
        self.pool = self.down = self.shortcut = None
        if strides > 1:
            self.pool = pooling(pool_type, padding, "pool", self.dtype_policy)
            if downsampling == "pooling":
                self.down = pooling("avg2", padding, "down", self.dtype_policy)
        self.drop_path = DropPath(drop_path_rate, seed=seed, dtype=self.dtype_policy, name="drop_path")
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def _dense(self, name, units, use_bias):
        # A dense layer computes the 1 x 1 convolution, because LoRA and quantization support dense layers.
        return Dense(units, use_bias=use_bias, kernel_initializer=FanOutNormal(), name=name, **self.inherited)

    def build(self, images_shape):
        channels = images_shape[-1]
        if channels != self.filters:
            self.shortcut = self._dense("shortcut", self.filters, self.use_bias)
        hidden_shape = (*images_shape[:-1], self.hidden_dim)
        self.pre_norm.build(images_shape)
        self.expand.build(images_shape)
        for layer in (self.expand_norm, self.depthwise, self.depthwise_norm, self.se, self.project, self.drop_path):
            layer.build(hidden_shape)
        for layer in (self.pool, self.down, self.shortcut):
            if layer is not None:
                layer.build(images_shape)
        self.restore_changes()

    def dense_layers(self):
        found = [self.expand, self.se.reduce, self.se.expand, self.project]
        return found if self.shortcut is None else [*found, self.shortcut]

    def call(self, images, training=None):
        shortcut = images if self.pool is None else self.pool(images)
        if self.shortcut is not None:
            shortcut = self.shortcut(shortcut)
        x = self.pre_norm(images, training=training)
        if self.pre_norm_activation:
            x = self.activation(x)
        if self.down is not None:
            x = self.down(x)
        elif self.strides > 1 and self.downsampling == "expansion":
            x = x[:, ::2, ::2]
        x = self.activation(self.expand_norm(self.expand(x), training=training))
        x = convolve(self.depthwise, x)
        if self.se_before_norm:
            x = self.se(x)
        x = self.activation(self.depthwise_norm(x, training=training))
        if not self.se_before_norm:
            x = self.se(x)
        return shortcut + self.drop_path(self.project(x), training=training)

    def compute_output_shape(self, images_shape):
        batch, *sides, _ = images_shape
        return batch, *(None if side is None else -(-side // self.strides) for side in sides), self.filters
