import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.models.bit.group_normalization import GroupNormalization
from tests.resnet_reference import group_norm


@pytest.mark.parametrize("mean, tolerance", [(0, 1e-5), (10, 1e-5), (100, 1e-4), (1000, 1e-3)])
def test_definition(mean, tolerance):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 7, 5, 64), loc=mean).astype("float32")
    gamma, beta = rng.normal(size=(2, 64)).astype("float32")
    layer = GroupNormalization(epsilon=1e-2)
    layer.build(x.shape)
    layer.set_weights([gamma, beta])
    expected = group_norm(x.astype("float64"), gamma, beta, 32, 1e-2)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, atol=tolerance)


@pytest.mark.parametrize("policy, tolerance", [("mixed_bfloat16", 2e-2), ("mixed_float16", 2e-3)])
@pytest.mark.parametrize("mean", [0, 100])
def test_statistics_are_in_float32(policy, tolerance, mean):
    layer = GroupNormalization(32, dtype=policy)
    x = ops.cast(np.random.default_rng(0).normal(size=(2, 14, 14, 64), loc=mean), layer.compute_dtype)
    expected = group_norm(ops.convert_to_numpy(ops.cast(x, "float32")).astype("float64"), 1, 0, 32, 1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(ops.cast(layer(x), "float32")), expected, atol=tolerance)


def test_constant_image_stays_finite():
    y = ops.convert_to_numpy(GroupNormalization(32)(np.full((1, 14, 14, 32), 100.7, "float32")))
    assert np.abs(y).max() < 0.1


@pytest.mark.parametrize("channels", [48, None])
def test_refuses_channels_that_make_no_groups(channels):
    with pytest.raises(ValueError, match="a multiple of 32, the number of groups. Received: shape "):
        GroupNormalization(32)(keras.Input((4, 4, channels)))
