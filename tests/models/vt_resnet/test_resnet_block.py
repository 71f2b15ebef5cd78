import numpy as np
import pytest
from keras import ops

from keras_vit.models.vt_resnet.resnet_block import ResNetBlock
from tests.contract import randomize
from tests.resnet_reference import convolve


def convolved(x, kernel, strides):
    return convolve(x, kernel, (strides, strides), "symmetric")


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("bottleneck", [False, True])
def test_definition(strides, bottleneck):
    layer = ResNetBlock(2, strides, bottleneck)
    layer.build((None, 6, 8, 3))
    randomize(layer, np.random.default_rng(0))
    found = {w.path.split("/", 1)[1]: ops.convert_to_numpy(w).astype("float64") for w in layer.weights}

    def step(x, name, strides=1):
        norm, keys = name.replace("conv", "norm"), ("moving_mean", "moving_variance", "gamma", "beta")
        mean, variance, gamma, beta = (found[f"{norm}/{key}"] for key in keys)
        return (convolved(x, found[f"{name}/kernel"], strides) - mean) / np.sqrt(variance + 1e-5) * gamma + beta

    x = np.random.default_rng(1).normal(size=(2, 6, 8, 3))
    if bottleneck:
        y = np.maximum(step(np.maximum(step(x, "conv_1"), 0), "conv_2", strides), 0)
        y = step(y, "conv_3")
    else:
        y = step(np.maximum(step(x, "conv_1", strides), 0), "conv_2")
    expected = np.maximum(y + step(x, "conv_proj", strides), 0)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, rtol=1e-4, atol=1e-4)


def test_shortcut_of_equal_shape_is_not_projected():
    block = ResNetBlock(4)
    x = np.random.default_rng(0).normal(size=(1, 5, 5, 4)).astype("float32")
    block(x)
    block.norms[-1].gamma.assign(np.zeros(4))
    np.testing.assert_array_equal(ops.convert_to_numpy(block(x)), np.maximum(x, 0))


def test_training_moves_the_statistics_by_a_tenth():
    block = ResNetBlock(2)
    x = np.random.default_rng(0).normal(loc=3, size=(4, 5, 5, 2)).astype("float32")
    block(x, training=True)
    batch = convolved(x.astype("float64"), ops.convert_to_numpy(block.convs[0].kernel), 1).mean(axis=(0, 1, 2))
    np.testing.assert_allclose(ops.convert_to_numpy(block.norms[0].moving_mean), 0.1 * batch, rtol=1e-3, atol=1e-4)
