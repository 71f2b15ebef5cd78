import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.prediction.inputs import check_values, in_unit_range, input_range, is_arrays, num_batches, sliced
from tests.errors import refuses
from tests.prediction.test_preprocessing import IMAGENET, raw
from tests.tiny import build

IMAGES, LABELS = np.zeros((5, 2, 2, 3)), np.arange(5)
UNUSUAL = [
    # Images of 16 bits, or in other units.
    ({"include_preprocessing": True}, raw() * 256.0),
    ({"include_preprocessing": True}, raw() - 127.5),
    ({}, raw() * 8.0 - 1000),
    # Scaled with the constants of another model.
    ({}, (raw() / 255 - 0.45) / 0.225),
]


def test_range_of_plain_and_wrapped_models():
    assert input_range(build()) == (-1, 1) and input_range(build(include_preprocessing=True)) == (0, 255)
    assert input_range(build(preprocessing=IMAGENET)) == pytest.approx((-2.118, 2.640), abs=1e-3)
    inputs = keras.Input((16, 16, 3))
    around = keras.Model(inputs, keras.layers.Dense(2)(build()(inputs)))
    assert input_range(around) == (-1, 1) and input_range(keras_vit.training.SAM(around)) == (-1, 1)
    assert input_range(keras.Sequential([inputs, keras.layers.Rescaling(1 / 255), build()])) is None
    assert input_range(keras.Sequential([inputs, keras.layers.Flatten()])) is None


@pytest.mark.parametrize("options", [{}, {"preprocessing": IMAGENET}, {"include_preprocessing": True}])
def test_preprocessed_images_pass_the_check(options):
    model = build(**options)
    images = keras_vit.preprocess_input(raw(), model)
    assert check_values(model, images) is None
    assert check_values(model, images[:0]) is None
    assert check_values(model, keras_vit.preprocess_input(np.zeros((1, 16, 16, 3)), model)) is None


@pytest.mark.parametrize("images", [raw() / 127.5 - 1, raw() / 255, np.full((1, 16, 16, 3), np.nan)])
def test_scaled_images_are_refused_if_the_model_scales(images):
    refuses("Expected images of .*Received: values from", check_values, build(include_preprocessing=True), images)


@pytest.mark.parametrize("options, images", UNUSUAL)
def test_unusual_values_return_a_warning(options, images):
    assert "as the model takes them. Received: values from" in check_values(build(**options), images)


def test_range_is_checked_behind_augmentation_layers():
    vit = build()
    flipped = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.RandomFlip(), vit])
    refuses("Received: values from 0 to 255", check_values, flipped, raw())
    scaled = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Rescaling(1 / 127.5, -1), vit])
    assert check_values(scaled, raw()) is None


@pytest.mark.parametrize("options", [{}, {"preprocessing": IMAGENET}])
def test_raw_images_are_refused_if_the_model_does_not_scale(options):
    refuses("values from 0 to 255. Scale them by keras_vit.preprocess_input", check_values, build(**options), raw())
    assert "scaled to 0..1" in check_values(build(**options), raw() / 255)


def test_other_models_take_any_finite_values():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    assert check_values(model, raw()) is None
    refuses("finite", check_values, model, np.array([np.inf]))


def test_in_unit_range():
    # Resized noise on a black image.
    assert not in_unit_range(np.where(raw() > 250, 0.75, 0.0))
    assert in_unit_range(raw() / 255) and not in_unit_range(raw()) and not in_unit_range(raw() // 255)
    assert not in_unit_range(raw() / 127.5 - 1) and not in_unit_range([])


class Endless(keras.utils.PyDataset):
    num_batches = None

    def __getitem__(self, i):
        return IMAGES, LABELS


def test_sliced_yields_batches_of_arrays():
    assert is_arrays((IMAGES, LABELS)) and not is_arrays((IMAGES, LABELS, LABELS)) and not is_arrays(IMAGES)
    assert [labels.tolist() for _, labels in sliced((IMAGES, LABELS), 2)] == [[0, 1], [2, 3], [4]]


def test_num_batches_of_each_kind_of_data():
    assert num_batches([1, 2]) == 2 and num_batches(iter([])) is None and num_batches(Endless()) == np.inf
    data = pytest.importorskip("tensorflow").data.Dataset.range(6)
    assert [num_batches(d) for d in (data, data.repeat(), data.filter(lambda x: x > 2))] == [6, np.inf, None]
