import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.batch_norm import BatchNorm
from keras_vit.layers.downsampling import conv, convolve
from keras_vit.layers.drop_path import DropPath

# A momentum of 0.9 in Keras equals 0.1 in PyTorch, because PyTorch's momentum is the weight of the new batch.
NORM = {"momentum": 0.9, "epsilon": 1e-5}


@keras.saving.register_keras_serializable(package="keras_vit")
class ResNetBlock(CompositeLayer):
    """A post-activation ResNet unit with batch normalization: two 3 x 3 convolutions, or a bottleneck.

    A bottleneck has convolutions of 1 x 1, 3 x 3 (strided) and 1 x 1 pixels, and `4 * width` output channels. If the
    shape changes, a 1 x 1 convolution and a norm project the shortcut.

    Reference: [arXiv 1512.03385](https://arxiv.org/abs/1512.03385), figure 5. In the paper, the first 1 x 1
    convolution of a bottleneck has the stride. In this layer, the 3 x 3 convolution has the stride, as in torchvision.
    Padding and initialization (He normal with the fan-out) are as in torchvision too.
    """

    adds_up = True

    def __init__(self, width, strides=1, bottleneck=False, drop_path_rate=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.width = arguments.positive_int("width", width)
        self.strides = arguments.positive_int("strides", strides)
        self.bottleneck = arguments.boolean("bottleneck", bottleneck)
        self.drop_path_rate = arguments.rate("drop_path_rate", drop_path_rate)
        self.seed = seed
        sizes = [(width, 3, strides), (width, 3, 1)]
        if self.bottleneck:
            sizes = [(width, 1, 1), (width, 3, strides), (4 * width, 1, 1)]
        self.convs = [self._conv(f"conv_{i}", *size) for i, size in enumerate(sizes, start=1)]
        self.norms = [self._norm(f"norm_{i}") for i in range(1, len(sizes) + 1)]
        self.drop_path = DropPath(self.drop_path_rate, seed=seed, dtype=self.dtype_policy, name="drop_path")
        self.conv_proj = self.norm_proj = None
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def _conv(self, name, filters, kernel_size, strides):
        options = {"filters": filters, "name": name, **self.inherited}
        return conv(keras.layers.Conv2D, kernel_size, strides, "symmetric", **options)

    def _norm(self, name):
        return BatchNorm(name=name, **NORM, **self.inherited)

    def build(self, images_shape):
        shape = images_shape
        for layer, norm in zip(self.convs, self.norms, strict=True):
            layer.build(shape)
            shape = (*shape[:3], layer.filters)
            norm.build(shape)
        self.drop_path.build(shape)
        if self.strides > 1 or images_shape[-1] != shape[-1]:
            self.conv_proj = self._conv("conv_proj", shape[-1], 1, self.strides)
            self.conv_proj.build(images_shape)
            self.norm_proj = self._norm("norm_proj")
            self.norm_proj.build(shape)
        self.restore_changes()

    def call(self, images, training=None):
        x = images
        for layer, norm in zip(self.convs, self.norms, strict=True):
            x = ops.relu(x) if layer is not self.convs[0] else x
            x = norm(convolve(layer, x), training=training)
        shortcut = images
        if self.conv_proj is not None:
            shortcut = self.norm_proj(self.conv_proj(images), training=training)
        return ops.relu(shortcut + self.drop_path(x, training=training))

    def compute_output_shape(self, images_shape):
        batch, *sides, _ = images_shape
        sides = (None if side is None else -(-side // self.strides) for side in sides)
        return batch, *sides, self.convs[-1].filters
