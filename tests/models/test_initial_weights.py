"""Standard deviations of initial kernels, as in the source of each layer of a ResNet, CoAtNet or EfficientNet."""

import numpy as np
import pytest
from keras import ops

from keras_vit.models.bit.bottleneck import Bottleneck
from keras_vit.models.bit.standardized_conv import StandardizedConv2D
from keras_vit.models.coatnet.mbconv import MBConv
from keras_vit.models.efficientnet.inverted_bottleneck import InvertedBottleneck
from keras_vit.models.vt_resnet.resnet_block import ResNetBlock

# The depthwise kernel of an EfficientNet has one output for each channel.
INVERTED = {"expand_conv": 384, "depthwise_conv": 25, "project_conv": 96}
INVERTED |= {"squeeze_excitation/reduce": 16, "squeeze_excitation/expand": 384}
# (layer, channels of its input, {kernel: number of its inputs or outputs}, the variance times this number, relative
# tolerance). The tolerance of a standard deviation is smaller for larger kernels.
CASES = [
    (Bottleneck(64, 2), 128, {"conv_1": 128, "conv_2": 9 * 64, "conv_3": 64, "conv_proj": 128}, 1, 0.03),
    (StandardizedConv2D(256, 3), 64, {"": 3 * 3 * 64}, 1, 0.01),
    (MBConv(256, 512, 64), 256, {"expand": 512, "depthwise": 9, "project": 256}, 2, 0.05),
    (InvertedBottleneck(96, 5, strides=2), 64, INVERTED, 2, 0.05),
    (ResNetBlock(64), 32, {"conv_1": 9 * 64}, 2, 0.02),
]


@pytest.mark.parametrize("layer, channels, fans, gain, rel", CASES, ids=lambda value: type(value).__name__)
def test_initial_weights(layer, channels, fans, gain, rel):
    layer.build((None, 8, 8, channels))
    weights = {weight.path.split("/", 1)[1]: ops.convert_to_numpy(weight) for weight in layer.weights}
    kernels = [weights[f"{path}/kernel".lstrip("/")] / np.sqrt(gain / fan) for path, fan in fans.items()]
    assert [kernel.std() for kernel in kernels] == pytest.approx([1] * len(fans), rel=rel)
    # No two kernels are drawn with the same seed.
    firsts = [kernel.ravel()[:64] for kernel in kernels]
    assert not any(np.allclose(a, b) for i, a in enumerate(firsts) for b in firsts[:i])
    assert not any(value.any() for path, value in weights.items() if path.endswith(("beta", "bias", "moving_mean")))


def test_unit_of_a_hybrid_adds_nothing_to_its_shortcut_at_first():
    for pre_activation in (False, True):
        layer = Bottleneck(64, 2, pre_activation)
        layer.build((None, 8, 8, 128))
        assert set(ops.convert_to_numpy(layer.norm_3.gamma).tolist()) == {1 if pre_activation else 0}
