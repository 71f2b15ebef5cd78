import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_vit.layers.symmetric_max_pooling import SymmetricMaxPooling2D
from tests.resnet_reference import max_pool


@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    pool_size=st.sampled_from([1, 3, 5]),
    strides=st.integers(1, 3),
    padding=st.sampled_from(["lowest", "zeros"]),
)
def test_definition(height, width, pool_size, strides, padding):
    x = np.random.default_rng(0).normal(size=(2, height, width, 3)).astype("float32") - 1
    expected = max_pool(x, pool_size, strides, 0 if padding == "zeros" else -np.inf)
    layer = SymmetricMaxPooling2D(pool_size, strides, padding)
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(x)), expected)
    assert layer.compute_output_shape(x.shape) == expected.shape


@pytest.mark.every_backend
@pytest.mark.parametrize("padding", ["lowest", "zeros"])
def test_nan_is_not_hidden(padding):
    x = np.zeros((2, 6, 6, 1), "float32")
    x[1, 3, 3] = np.nan
    y = ops.convert_to_numpy(SymmetricMaxPooling2D(3, 2, padding)(x))[..., 0]
    assert np.isfinite(y[0]).all() and (~np.isfinite(y[1])).sum() == 4
