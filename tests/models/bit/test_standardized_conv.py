import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_vit.models.bit.standardized_conv import StandardizedConv2D
from tests.errors import refuses
from tests.resnet_reference import convolve, standardize

BIT = {"padding": "symmetric", "epsilon": 1e-10, "epsilon_added_to": "variance"}
SIDES = st.integers(1, 12)
STRIDES = st.integers(1, 3)


@given(
    height=SIDES, width=SIDES, kernel=st.tuples(SIDES, SIDES), strides=st.tuples(STRIDES, STRIDES), bit=st.booleans()
)
def test_definition(height, width, kernel, strides, bit):
    if bit:
        kernel = tuple(side | 1 for side in kernel)
    options = BIT if bit else {"padding": "same", "epsilon": 1e-5, "epsilon_added_to": "std"}
    layer = StandardizedConv2D(2, kernel, strides, **options)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, height, width, 3)).astype("float32")
    layer.build(images.shape)
    # A small kernel, for which the epsilons matter.
    weight = rng.normal(size=(*kernel, 3, 2), scale=1e-4).astype("float32")
    layer.set_weights([weight])
    standardized = standardize(weight.astype("float64"), options["epsilon"], options["epsilon_added_to"])
    np.testing.assert_allclose(ops.convert_to_numpy(layer.standardized_kernel()), standardized, rtol=1e-4, atol=1e-5)
    y = ops.convert_to_numpy(layer(images))
    assert y.shape == layer.compute_output_shape(images.shape)
    np.testing.assert_allclose(y, convolve(images, standardized, strides, options["padding"]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("options", [{}, BIT])
def test_kernels_are_standardized_in_float32(policy, options):
    # Variations of a thousandth around 1, which bfloat16 would round away, and float16 nearly.
    kernel = 1 + 1e-3 * np.random.default_rng(0).normal(size=(3, 3, 8, 4)).astype("float32")
    kernels = []
    for dtype in (policy, "float32"):
        layer = StandardizedConv2D(4, 3, dtype=dtype, **options)
        layer.build((None, 6, 6, 8))
        layer.set_weights([kernel])
        # On an image of one pixel, only the middle of the kernel has an effect.
        one_pixel = np.eye(8, dtype="float32").reshape(8, 1, 1, 8)
        kernels.append(ops.convert_to_numpy(ops.cast(layer(one_pixel), "float32")))
    np.testing.assert_allclose(*kernels, atol=2e-2)


@pytest.mark.parametrize("options", [{}, BIT])
def test_constant_filter_has_finite_gradients(options):
    model = keras.Sequential([keras.Input((4, 4, 3)), StandardizedConv2D(2, 3, kernel_initializer="zeros", **options)])
    model.compile(keras.optimizers.SGD(1e-9), "mse", jit_compile="auto" if keras.backend.backend() == "jax" else False)
    rng = np.random.default_rng(0)
    model.train_on_batch(rng.normal(size=(2, 4, 4, 3)), rng.normal(size=(2, 4, 4, 2)))
    assert np.isfinite(model.get_weights()[0]).all()


def test_channels_are_last_under_any_keras_config():
    images = np.random.default_rng(0).normal(size=(1, 5, 6, 3)).astype("float32")
    layer = StandardizedConv2D(4, 3)
    expected = ops.convert_to_numpy(layer(images))
    before = keras.config.image_data_format()
    keras.config.set_image_data_format("channels_first")
    try:
        again = StandardizedConv2D(4, 3)
        again.build(images.shape)
        again.set_weights(layer.get_weights())
        np.testing.assert_array_equal(ops.convert_to_numpy(again(images)), expected)
    finally:
        keras.config.set_image_data_format(before)


def test_initial_weights():
    layer = StandardizedConv2D(256, 3)
    layer.build((None, 14, 14, 64))
    assert ops.convert_to_numpy(layer.kernel).std() == pytest.approx(1 / np.sqrt(3 * 3 * 64), rel=0.01)


def test_unsuitable_images_are_refused():
    layer, message = StandardizedConv2D(4, 3), "Expected images with a known number of channels. Received: shape "
    refuses(message, layer, keras.Input((8, 8, None)))
    refuses("expected ndim=4, found ndim=3", layer, np.zeros((8, 8, 3)))
