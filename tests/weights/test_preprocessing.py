import pytest

from keras_vit import Preprocessing
from keras_vit.weights import preprocessing


def test_given_values_override_record():
    found = preprocessing.preprocessing_of(None, None, 3, mean=0.4, std=None, interpolation=None, crop_fraction=0.9)
    assert found == Preprocessing(mean=0.4, crop_fraction=0.9)
    pillow = Preprocessing(interpolation="bilinear", antialias=True)
    assert preprocessing.preprocessing_of(None, pillow, 3, interpolation="bicubic").antialias


def test_timm_config_gives_preprocessing():
    config = {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1], "interpolation": "bicubic", "crop_pct": 0.95}
    expected = {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1], "interpolation": "bicubic", "crop_fraction": 0.95}
    assert preprocessing.of_timm(config) == {**expected, "antialias": True, "resize_mode": "crop"}
    whole = preprocessing.of_timm({"interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "center"})
    assert whole["resize_mode"] == "crop" and whole["antialias"]
    modes = [preprocessing.of_timm({"crop_mode": mode})["resize_mode"] for mode in ("squash", "border")]
    assert modes == ["squash", "pad"]
    with pytest.raises(ValueError, match="`crop_mode` .* Received: 'corner'"):
        preprocessing.of_timm({"crop_mode": "corner"})
    assert preprocessing.of_timm({})["mean"] == 0.5


@pytest.mark.parametrize(
    "size, crop, center, fraction",
    [
        ({"height": 256, "width": 256}, {"height": 224, "width": 224}, True, 0.875),
        ({"shortest_edge": 256}, 224, True, 0.875),
        (256, None, True, 1.0),
        (224, 256, True, 1.0),
        (256, 224, False, 1.0),
    ],
)
def test_crop_fraction_of_transformers_config(size, crop, center, fraction):
    config = {"size": size, "crop_size": crop, "do_center_crop": center, "resample": 3}
    found = preprocessing.of_huggingface("folder", config, {})
    assert found["crop_fraction"] == fraction and found["interpolation"] == "bicubic" and found["antialias"]
    assert found["resize_mode"] == ("crop" if size == {"shortest_edge": 256} else "squash")
