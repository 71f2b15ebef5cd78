import keras
import pytest

from tests.tiny import build


@pytest.mark.parametrize("name", ["head", "config", "blocks", "preprocessing", "grid_size"])
def test_what_is_read_from_the_layers_cannot_be_set(name):
    model = build()
    with pytest.raises(AttributeError, match=f"`{name}` of model 'vit_B16' is read from its layers"):
        setattr(model, name, keras.layers.Dense(7))
    model.mine = 3
    assert model.mine == 3 and len(model.weights) == len(build().weights)
