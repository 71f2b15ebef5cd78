import keras
import numpy as np
import pytest

from keras_vit.layers.downsampling import MaxPooling2D, conv, convolve, pooling
from keras_vit.layers.padding import ZeroPadding2D

STRIDED, PADDED = {"strides": 2, "padding": "same"}, {"padding": ((1, 2), (0, 3))}


@pytest.mark.parametrize("side", [(7, 8), (2, 1)])
@pytest.mark.parametrize(
    "kind, options", [(MaxPooling2D, {"pool_size": n, **STRIDED}) for n in (2, 3)] + [(ZeroPadding2D, PADDED)]
)
def test_layer_equals_that_of_keras(kind, options, side):
    images = np.random.default_rng(0).normal(size=(2, *side, 3)).astype("float32")
    ours, theirs = (each(data_format="channels_last", **options) for each in (kind, kind.__base__))
    np.testing.assert_array_equal(ours(images).cpu(), theirs(images).cpu())


@pytest.mark.parametrize("side", [7, 8])
@pytest.mark.parametrize("padding", ["same", "symmetric"])
def test_downsampling_pads_as_tensorflow_or_pytorch(padding, side):
    from torch.nn import functional

    images = keras.random.normal((2, side, side, 3), seed=0)
    symmetric, nchw = padding == "symmetric", images.permute(0, 3, 1, 2)
    options = {"padding": "same", "data_format": "channels_last"}
    for pool_type, kind in {"max2": keras.layers.MaxPooling2D, "avg2": keras.layers.AveragePooling2D}.items():
        expected = kind(2, 2, **options)(images)
        np.testing.assert_array_equal(pooling(pool_type, padding, "pool", "float32")(images).cpu(), expected.cpu())
    expected = functional.max_pool2d(nchw, 3, 2, 1).permute(0, 2, 3, 1)
    expected = expected if symmetric else keras.layers.MaxPooling2D(3, 2, **options)(images)
    np.testing.assert_array_equal(pooling("max3", padding, "pool", "float32")(images).cpu(), expected.cpu())
    for strides in (1, 2):
        layer = conv(keras.layers.Conv2D, 3, strides, padding, filters=4)
        outputs, kernel = convolve(layer, images).detach(), layer.kernel.value.detach()
        expected = functional.conv2d(nchw, kernel.permute(3, 2, 0, 1), stride=strides, padding=1).permute(0, 2, 3, 1)
        expected = expected if symmetric else keras.ops.conv(images, kernel, strides, "same", "channels_last").detach()
        np.testing.assert_allclose(outputs.cpu(), expected.cpu(), atol=1e-5)


@pytest.mark.long
def test_compiled_gradient_of_max_pooling_equals_eager():
    import torch

    pooling = MaxPooling2D(3, 2, padding="same", data_format="channels_last")
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 3))
    gradients = []
    for compiled in (False, True):
        x = torch.tensor(images, requires_grad=True)
        (torch.compile(pooling) if compiled else pooling)(x * 2).sin().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
