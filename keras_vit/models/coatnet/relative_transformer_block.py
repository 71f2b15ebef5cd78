import keras

from keras_vit import arguments
from keras_vit.config import PADDINGS
from keras_vit.layers import initializers
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.batch_norm import BatchNorm
from keras_vit.layers.dense import Dense
from keras_vit.layers.downsampling import pooling
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.mlp import MLP
from keras_vit.models.coatnet.config import EXPANSION, NORMS, POOL_TYPES
from keras_vit.models.coatnet.relative_attention import RelativeAttention


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativeTransformerBlock(CompositeLayer):
    """CoAtNet's transformer block: a norm, relative attention, a second norm, and an MLP.

    The hidden layer of the MLP has `4 * units` channels. With `strides=2`, the shortcut and the output of the first
    norm are pooled. A dense layer projects the shortcut if the number of channels changes.

    The arguments are as in `RelativeAttention` and `CoAtNetConfig`. `norm` and `epsilon` are for both norms.

    Reference: [arXiv 2106.04803](https://arxiv.org/abs/2106.04803), section 2.1 and appendix A.1. The paper does not
    state the window of the max pooling, or whether a shortcut with equal channels is projected. This layer uses 2 x 2
    and no projection.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        units,
        grid_size,
        strides=1,
        pool_type="max2",
        padding="same",
        shortcut_bias=True,
        norm="layer",
        epsilon=1e-6,
        layer_scale_init=None,
        activation="gelu",
        position_mlp_dim=None,
        interpolation="bilinear",
        drop_path_rate=0.0,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads, self.head_dim, self.units = num_heads, head_dim, arguments.positive_int("units", units)
        self.strides = arguments.choice("strides", strides, (1, 2))
        self.pool_type = arguments.choice("pool_type", pool_type, POOL_TYPES)
        self.padding = arguments.choice("padding", padding, PADDINGS)
        self.shortcut_bias = arguments.boolean("shortcut_bias", shortcut_bias)
        self.norm = arguments.choice("norm", norm, NORMS)
        self.epsilon = arguments.epsilon("epsilon", epsilon)
        self.layer_scale_init = arguments.optional(arguments.number, "layer_scale_init", layer_scale_init)
        self.position_mlp_dim, self.interpolation, self.seed = position_mlp_dim, interpolation, seed
        self.drop_path_rate = arguments.rate("drop_path_rate", drop_path_rate)
        self.attention = RelativeAttention(
            num_heads, head_dim, units, grid_size, position_mlp_dim, interpolation, name="attention", **self.inherited
        )
        self.grid_size = self.attention.grid_size
        self.mlp = MLP(EXPANSION * units, activation, name="mlp", **self.inherited)
        self.activation = self.mlp.activation
        self.norm_1, self.norm_2 = (norm_layer(norm, epsilon, name, **self.inherited) for name in ("norm_1", "norm_2"))
        self.pool = None
        if strides > 1:
            self.pool = pooling(pool_type, padding, "pool", self.dtype_policy)
        self.shortcut = self.layer_scale_1 = self.layer_scale_2 = None
        if layer_scale_init is not None:
            self.layer_scale_1 = LayerScale(layer_scale_init, name="layer_scale_1", **self.inherited)
            self.layer_scale_2 = LayerScale(layer_scale_init, name="layer_scale_2", **self.inherited)
        self.drop_path_1, self.drop_path_2 = (
            DropPath(drop_path_rate, seed=s, dtype=self.dtype_policy, name=f"drop_path_{i}")
            for i, s in enumerate(arguments.seeds(seed, 2), start=1)
        )
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, images_shape):
        inside = (*images_shape[:-1], self.units)
        self.norm_1.build(images_shape)
        self.attention.build(images_shape)
        if images_shape[-1] != self.units:
            init = initializers.GlorotUniform()
            self.shortcut = Dense(
                self.units, use_bias=self.shortcut_bias, kernel_initializer=init, name="shortcut", **self.inherited
            )
            self.shortcut.build(images_shape)
        if self.pool is not None:
            self.pool.build(images_shape)
        branches = (self.layer_scale_1, self.layer_scale_2, self.drop_path_1, self.drop_path_2)
        for layer in (self.norm_2, self.mlp, *branches):
            if layer is not None:
                layer.build(inside)
        self.restore_changes()

    def dense_layers(self):
        shortcut = [] if self.shortcut is None else [self.shortcut]
        return [*self.attention.dense_layers(), *self.mlp.dense_layers(), *shortcut]

    def call(self, images, training=None):
        shortcut, x = images, self.norm_1(images, **self._mode(training))
        if self.pool is not None:
            shortcut, x = self.pool(shortcut), self.pool(x)
        if self.shortcut is not None:
            shortcut = self.shortcut(shortcut)
        x = shortcut + self._branch(self.attention(x), self.layer_scale_1, self.drop_path_1, training)
        y = self.mlp(self.norm_2(x, **self._mode(training)), training=training)
        return x + self._branch(y, self.layer_scale_2, self.drop_path_2, training)

    def _mode(self, training):
        return {"training": training} if self.norm == "batch" else {}

    def _branch(self, x, layer_scale, drop_path, training):
        if layer_scale is not None:
            x = layer_scale(x)
        return drop_path(x, training=training) if drop_path.rate else x

    def compute_output_shape(self, images_shape):
        batch, *sides, _ = images_shape
        return batch, *(None if side is None else -(-side // self.strides) for side in sides), self.units


def norm_layer(kind, epsilon, name, **options):
    """Returns a batch normalization layer if `kind` is "batch", else a layer normalization layer."""
    if kind == "batch":
        return BatchNorm(momentum=0.9, epsilon=epsilon, name=name, **options)
    return LayerNorm(epsilon=epsilon, name=name, **options)
