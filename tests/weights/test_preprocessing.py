import pytest

from keras_vit.preprocessing import Preprocessing
from keras_vit.weights import preprocessing


def test_what_is_given_comes_before_the_record():
    given = {"mean": 0.4, "std": None, "interpolation": None, "crop_fraction": 0.9}
    assert preprocessing.preprocessing_of(None, None, **given) == Preprocessing(mean=0.4, crop_fraction=0.9)
    record = Preprocessing(mean=0.1, std=0.2)
    found = preprocessing.preprocessing_of(None, record, **given)
    assert found == Preprocessing(mean=0.4, std=0.2, crop_fraction=0.9)


def test_timm_says_its_constants():
    config = {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1], "interpolation": "bicubic", "crop_pct": 0.95}
    expected = {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1], "interpolation": "bicubic", "crop_fraction": 0.95}
    assert preprocessing.of_timm(config) == expected
    assert preprocessing.of_timm({})["mean"] == 0.5


@pytest.mark.parametrize(
    "size, crop, fraction",
    [
        ({"height": 256, "width": 256}, {"height": 224, "width": 224}, 0.875),
        ({"shortest_edge": 256}, 224, 0.875),
        (256, None, 1.0),
        (224, 256, 1.0),
    ],
)
def test_the_crop_is_a_share_of_the_size(size, crop, fraction):
    config = {"size": size, "crop_size": crop, "do_center_crop": True, "resample": 3}
    found = preprocessing.of_huggingface("folder", config, {})
    assert found["crop_fraction"] == fraction and found["interpolation"] == "bicubic"


def test_without_a_crop_the_crop_size_does_not_count():
    config = {"size": 256, "crop_size": 224, "do_center_crop": False}
    assert preprocessing.of_huggingface("folder", config, {})["crop_fraction"] == 1.0
