import keras
import numpy as np
import pytest

from keras_vit.models.finite import non_finite_weights
from tests.models.bit import test_model as bit


def with_nan(model):
    """Puts one NaN into the kernel of the first convolution."""
    kernel = model.get_layer("root_conv").kernel
    array = np.array(keras.ops.convert_to_numpy(kernel))
    array.flat[0] = np.nan
    kernel.assign(array)
    return model


@pytest.mark.every_backend
def test_weights_with_nan_or_infinity_are_named():
    model = keras.Sequential([bit.build(num_classes=0), keras.layers.Dropout(0.5, seed=0), keras.layers.Dense(2)])
    assert non_finite_weights(model) == []
    with_nan(model.layers[0])
    bias = model.layers[-1].bias
    bias.assign([0.0, -np.inf])
    assert non_finite_weights(model) == [model.layers[0].get_layer("root_conv").kernel.path, bias.path]
