import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import CompositeLayer
from keras_vit.models.bit.config import RESNET_EPSILONS
from keras_vit.models.bit.group_normalization import GroupNormalization
from keras_vit.models.bit.standardized_conv import StandardizedConv2D


def conv_options(pre_activation, epsilons):
    """Returns the options of each `StandardizedConv2D` in a ResNet. The arguments are as in `Bottleneck`.

    `pre_activation` is True for BiT and False for the ResNets of hybrids.
    """
    padding = "symmetric" if pre_activation else "same"
    if epsilons == "timm":
        return {"padding": padding, "epsilon": 1e-8, "epsilon_added_to": "variance"}
    if pre_activation:
        return {"padding": padding, "epsilon": 1e-10, "epsilon_added_to": "variance"}
    return {"padding": padding, "epsilon": 1e-5, "epsilon_added_to": "std"}


def norm_options(pre_activation, epsilons):
    """Returns the options of `GroupNormalization`; the arguments are as in `conv_options`."""
    return {"groups": 32, "epsilon": 1e-5 if pre_activation or epsilons == "timm" else 1e-6}


@keras.saving.register_keras_serializable(package="keras_vit")
class Bottleneck(CompositeLayer):
    """A ResNet bottleneck unit with group normalization (32 groups) and standardized convolutions.

    The residual branch has three convolutions: 1 x 1, 3 x 3 with the stride, and 1 x 1. If the unit changes the shape
    of the feature map, a 1 x 1 convolution projects the shortcut. The unit has `4 * width` output channels.

    With `pre_activation=False`, as in hybrids, a norm follows each convolution and the projection, and a ReLU follows
    the first two norms and the sum. With True, as in BiT, a norm and a ReLU precede each convolution, and the
    projection reads the output of the first norm and ReLU. The two kinds also differ in the padding and epsilon of the
    convolutions.

    Reference: [arXiv 1512.03385](https://arxiv.org/abs/1512.03385), but the stride is in the second convolution.
    Pre-activation: [arXiv 1603.05027](https://arxiv.org/abs/1603.05027) and [arXiv
    1912.11370](https://arxiv.org/abs/1912.11370). Initialized as in the official Flax code: LeCun normal kernels; the
    last norm's scale is zero in hybrids.
    """

    adds_up = True

    def __init__(self, width, strides=1, pre_activation=False, epsilons="official", **kwargs):
        super().__init__(**kwargs)
        self.width = arguments.positive_int("width", width)
        self.strides = arguments.positive_int("strides", strides)
        self.pre_activation = arguments.boolean("pre_activation", pre_activation)
        self.epsilons = arguments.choice("epsilons", epsilons, RESNET_EPSILONS)
        if self.width % 32:
            raise arguments.invalid("width", "a multiple of 32", width)
        self.conv_1 = self._conv("conv_1", width, 1)
        self.conv_2 = self._conv("conv_2", width, 3, strides)
        self.conv_3 = self._conv("conv_3", 4 * width, 1)
        self.norm_1, self.norm_2 = self._norm("norm_1"), self._norm("norm_2")
        self.norm_3 = self._norm("norm_3", gamma_initializer="ones" if self.pre_activation else "zeros")
        self.conv_proj = self.norm_proj = None
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def _conv(self, name, filters, kernel_size, strides=1):
        options = {**conv_options(self.pre_activation, self.epsilons), **self.inherited}
        return StandardizedConv2D(filters, kernel_size, strides, name=name, **options)

    def _norm(self, name, **kwargs):
        return GroupNormalization(
            name=name, **norm_options(self.pre_activation, self.epsilons), **self.inherited, **kwargs
        )

    def build(self, images_shape):
        if self.strides > 1 or images_shape[-1] != 4 * self.width:
            self.conv_proj = self._conv("conv_proj", 4 * self.width, 1, self.strides)
            self.conv_proj.build(images_shape)
            if not self.pre_activation:
                self.norm_proj = self._norm("norm_proj")
                self.norm_proj.build(self.conv_proj.compute_output_shape(images_shape))
        shape = images_shape
        for conv, norm in ((self.conv_1, self.norm_1), (self.conv_2, self.norm_2), (self.conv_3, self.norm_3)):
            conv.build(shape)
            if self.pre_activation:
                norm.build(shape)
            shape = conv.compute_output_shape(shape)
            if not self.pre_activation:
                norm.build(shape)
        self.restore_changes()

    def call(self, images):
        if self.pre_activation:
            x = ops.relu(self.norm_1(images))
            shortcut = images if self.conv_proj is None else self.conv_proj(x)
            x = ops.relu(self.norm_2(self.conv_1(x)))
            return shortcut + self.conv_3(ops.relu(self.norm_3(self.conv_2(x))))
        shortcut = images if self.conv_proj is None else self.norm_proj(self.conv_proj(images))
        x = ops.relu(self.norm_1(self.conv_1(images)))
        x = ops.relu(self.norm_2(self.conv_2(x)))
        return ops.relu(shortcut + self.norm_3(self.conv_3(x)))

    def compute_output_shape(self, images_shape):
        return self.conv_3.compute_output_shape(self.conv_2.compute_output_shape(images_shape))
