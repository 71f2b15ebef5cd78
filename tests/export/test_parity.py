import keras
import numpy as np
import pytest

from keras_vit.export import parity
from tests import tiny


def test_difference_of_other_shapes_is_infinite():
    assert parity.largest_difference([[np.zeros((2, 3))]], [[np.zeros((2, 1))]]) == float("inf")


def test_probes_vary_batch_size_and_range():
    assert [x.shape for x in parity.probes(tiny.build())] == [(n, 16, 16, 3) for n in (2, 1, 3)]
    shapes = [x.shape for x in parity.probes(tiny.build(image_size=(None, None)))]
    assert len({shape[1:3] for shape in shapes}) == 3
    assert all(height != width for _, height, width, _ in shapes)
    raw = tiny.build(include_preprocessing=True)
    nested = keras.Sequential([keras.Input((16, 16, 3)), keras.Sequential([keras.Input((16, 16, 3)), raw])])
    for model in (raw, nested):
        assert parity.probes(model)[0].max() > 200
    assert parity.probes(tiny.build())[0].min() < -0.9


def test_model_of_two_inputs_raises():
    a, b = keras.Input((2,)), keras.Input((2,))
    with pytest.raises(ValueError, match="one input.*2 inputs"):
        parity.probes(keras.Model([a, b], a + b))


def test_model_with_nan_is_named():
    model = tiny.build()
    with pytest.raises(parity.ParityError, match="finite outputs of model 'vit_B16'. Received: NaN or infinity"):
        parity.check_finite(model, [np.ones(3), np.array([np.nan])])
    bias = model.get_layer("head").bias
    bias.assign(np.where(np.arange(bias.shape[0]) == 1, np.nan, 0))
    with pytest.raises(parity.ParityError, match="finite weights of model 'vit_B16'. Received: .* in 'head/bias'"):
        parity.check_finite(model)
