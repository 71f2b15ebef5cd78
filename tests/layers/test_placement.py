from types import SimpleNamespace

import keras
import pytest

from keras_vit.layers.placement import is_split


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (None, False),
        (keras.distribution.TensorLayout([None, None]), False),
        (keras.distribution.TensorLayout([None, "model"]), True),
        # As older versions of Keras keep it: JAX's sharding.
        (SimpleNamespace(spec=(None, None)), False),
        (SimpleNamespace(spec=("batch",)), True),
    ],
)
def test_layer_with_a_split_variable_is_split(monkeypatch, layout, expected):
    layer = keras.layers.Dense(4)
    layer.build((None, 8))
    assert not is_split(layer)
    whole = keras.distribution.TensorLayout([None])
    distribution = SimpleNamespace(get_variable_layout=lambda v: layout if v is layer.kernel else whole)
    monkeypatch.setattr(keras.distribution, "distribution", lambda: distribution)
    assert is_split(layer) is expected
