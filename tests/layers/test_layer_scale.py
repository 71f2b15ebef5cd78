import numpy as np
import pytest
from keras import ops

from keras_vit.layers import LayerScale
from tests.contract import check_layer


@pytest.mark.every_backend
@pytest.mark.parametrize("shape", [(2, 5, 8), (3, 8)])
def test_contract(shape):
    check_layer(LayerScale, {"init_value": 0.3}, shape, output_shape=shape, num_weights=1)


def test_each_channel_has_its_factor():
    layer = LayerScale()
    layer.build((None, 3, 4))
    np.testing.assert_array_equal(ops.convert_to_numpy(layer.gamma), np.full(4, 1e-5, "float32"))
    layer.gamma.assign([1.0, 2.0, 0.0, -1.0])
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(x)), x * np.array([1, 2, 0, -1], "float32"))
