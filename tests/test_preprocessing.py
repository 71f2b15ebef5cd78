import json

import numpy as np
import pytest

import keras_vit
from keras_vit.config import Preprocessing
from tests import tiny

DEIT = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "interpolation": "bicubic", "crop_fraction": 0.875}
WRONG = [
    ({"mean": "0.5"}, "`mean`. Expected a number up to .*, or one per channel. Received: '0.5'"),
    ({"std": (0.5, float("nan"), 0.5)}, "`std`. Expected a number"),
    ({"interpolation": "cubic"}, "`interpolation`. Expected one of 'bilinear', .* Received: 'cubic'"),
    ({"value_range": (1, 0)}, "`value_range`. Expected .low, high."),
    ({"antialias": True, "interpolation": "nearest"}, "`antialias`. Expected None or False with"),
    ({"antialias": False, "interpolation": "area"}, "`antialias`. Expected None or True with"),
    ({"resize_mode": "stretch"}, "`resize_mode`. Expected one of 'crop', 'squash', 'pad', None"),
]


@pytest.mark.parametrize("wrong, message", WRONG)
def test_wrong_constant_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**wrong)


def test_defaults_depend_on_other_constants():
    assert Preprocessing(mean=[0.5]) == Preprocessing() != Preprocessing(interpolation="bicubic")
    assert Preprocessing() == Preprocessing(antialias=False, resize_mode="squash", value_range=[0, 1])
    assert Preprocessing(**DEIT) == Preprocessing(**DEIT, antialias=True, resize_mode="crop")
    assert Preprocessing().changed(**DEIT) == Preprocessing(**DEIT)
    said = Preprocessing(interpolation="bilinear", antialias=True, resize_mode="pad")
    changed = said.changed(interpolation="bicubic", crop_fraction=0.9)
    assert (changed.antialias, changed.resize_mode) == (True, "pad")
    assert said.changed(interpolation="nearest").antialias is False


def test_value_range_scales_pixels():
    model = tiny.build(preprocessing=Preprocessing(value_range=(-1, 1), mean=0.2, std=0.4))
    pixels = np.array([[[[0.0, 127.5, 255.0]]]], "float32")
    expected = (np.array([-1.0, 0.0, 1.0]) - 0.2) / 0.4
    layer = model.get_layer("normalization")
    np.testing.assert_allclose(keras_vit.preprocess_input(pixels, model).ravel(), expected, atol=1e-6)
    np.testing.assert_allclose(layer.raw_images(layer.normalize(pixels)), pixels, atol=1e-4)
    again = keras_vit.ViTConfig.from_dict(json.loads(json.dumps(model.config.to_dict())))
    assert again.preprocessing == model.preprocessing
    older = model.config.to_dict()
    older["preprocessing"] = {"mean": 0.5, "std": 0.5, "interpolation": "bicubic", "crop_fraction": 0.875}
    assert keras_vit.ViTConfig.from_dict(older).preprocessing == Preprocessing(
        interpolation="bicubic", crop_fraction=0.875
    )
