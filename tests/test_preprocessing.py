import keras
import pytest

import keras_vit
from keras_vit.preprocessing import Preprocessing, carrier_of
from tests import tiny

DEIT = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "interpolation": "bicubic", "crop_fraction": 0.875}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mean": "0.5"}, "`mean`. Expected a number"),
        ({"mean": ()}, "`mean`. Expected a number"),
        ({"std": (0.5, float("nan"), 0.5)}, "`std`. Expected a number"),
        ({"std": 0}, "`std`. Expected positive"),
        ({"interpolation": "cubic"}, "`interpolation`. Expected one of"),
        ({"crop_fraction": 0}, "`crop_fraction`. Expected a number in"),
        ({"crop_fraction": True}, "`crop_fraction`. Expected a number in"),
    ],
)
def test_wrong_constants(wrong, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**wrong)


def test_equal_constants_are_equal_records():
    assert Preprocessing(mean=[0.5]) == Preprocessing() != Preprocessing(interpolation="bicubic")
    assert Preprocessing(**DEIT).antialias and not Preprocessing().antialias


def test_is_found_in_a_users_model_nested_or_not():
    backbone = tiny.build(num_classes=0, **DEIT)
    own_head = keras.Model(backbone.input, keras.layers.Dense(2)(backbone.output))
    nested = keras.Sequential([keras.layers.RandomFlip(), backbone, keras.layers.Dense(2)])
    for model in (backbone, own_head, nested, keras.models.clone_model(own_head)):
        assert carrier_of(model).preprocessing == keras_vit.Preprocessing(**DEIT)
    assert carrier_of(keras.Sequential([keras.layers.Dense(2)])) is None
