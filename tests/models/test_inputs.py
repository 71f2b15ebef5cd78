import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models.inputs import check_values, in_unit_range, is_arrays, num_batches, range_of, sliced, to_numpy
from tests.tiny import build

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def raw():
    return np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3)).astype("uint8")


def test_what_a_model_takes():
    assert range_of(build()) == (-1, 1) and range_of(build(include_preprocessing=True)) == (0, 255)
    assert range_of(build(**IMAGENET)) == pytest.approx((-2.118, 2.640), abs=1e-3)
    inputs = keras.Input((16, 16, 3))
    around = keras.Model(inputs, keras.layers.Dense(2)(build()(inputs)))
    assert range_of(around) == (-1, 1) and range_of(keras_vit.training.SAM(around)) == (-1, 1)
    assert range_of(keras.Sequential([inputs, keras.layers.Rescaling(1 / 255), build()])) is None
    assert range_of(keras.Sequential([inputs, keras.layers.Flatten()])) is None


@pytest.mark.parametrize("options", [{}, IMAGENET, {"include_preprocessing": True}])
def test_images_as_the_model_takes_them_pass(options):
    model = build(**options)
    images = keras_vit.preprocess_input(raw(), model)
    assert check_values(model, images) is None
    assert check_values(model, images[:0]) is None
    black = keras_vit.preprocess_input(np.zeros((1, 16, 16, 3)), model)
    assert check_values(model, black) is None


@pytest.mark.parametrize("images", [raw() / 127.5 - 1, raw() / 255, np.full((1, 16, 16, 3), np.nan)])
def test_images_that_were_scaled_are_refused_by_a_model_that_scales(images):
    with pytest.raises(ValueError, match="Expected images of .*Received: values from"):
        check_values(build(include_preprocessing=True), images)


@pytest.mark.parametrize(
    ("options", "images"),
    [
        # Of 16 bits, or in units of their own.
        ({"include_preprocessing": True}, raw() * 256.0),
        ({"include_preprocessing": True}, raw() - 127.5),
        ({}, raw() * 8.0 - 1000),
        # Scaled with the constants of another model.
        ({}, (raw() / 255 - 0.45) / 0.225),
    ],
)
def test_what_may_be_meant_is_said(options, images):
    assert "as the model takes them. Received: values from" in check_values(build(**options), images)


def test_layers_that_keep_values_may_stand_before():
    vit = build()
    flipped = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.RandomFlip(), vit])
    with pytest.raises(ValueError, match="Received: values from 0 to 255"):
        check_values(flipped, raw())
    scaled = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Rescaling(1 / 127.5, -1), vit])
    assert check_values(scaled, raw()) is None


@pytest.mark.parametrize("options", [{}, IMAGENET])
def test_raw_images_are_refused_by_a_model_that_does_not_scale(options):
    with pytest.raises(ValueError, match="Received: values from 0 to 255. keras_vit.preprocess_input"):
        check_values(build(**options), raw())
    assert "scaled to 0..1" in check_values(build(**options), raw() / 255)


def test_a_model_of_another_kind_takes_what_it_takes():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    assert check_values(model, raw()) is None
    with pytest.raises(ValueError, match="finite"):
        check_values(model, np.array([np.inf]))


def test_images_in_0_to_1():
    # Noise on black, resized.
    assert not in_unit_range(np.where(raw() > 250, 0.75, 0.0))
    assert in_unit_range(raw() / 255) and not in_unit_range(raw()) and not in_unit_range(raw() // 255)
    assert not in_unit_range(raw() / 127.5 - 1) and not in_unit_range([])


IMAGES, LABELS = np.zeros((5, 2, 2, 3)), np.arange(5)


class Endless(keras.utils.PyDataset):
    num_batches = None

    def __getitem__(self, i):
        return IMAGES, LABELS


def test_arrays_are_sliced():
    assert is_arrays((IMAGES, LABELS)) and not is_arrays((IMAGES, LABELS, LABELS)) and not is_arrays(IMAGES)
    assert [labels.tolist() for _, labels in sliced((IMAGES, LABELS), 2)] == [[0, 1], [2, 3], [4]]
    np.testing.assert_array_equal(to_numpy(keras.ops.convert_to_tensor(LABELS)), LABELS)


def test_how_many_batches_there_are():
    assert num_batches([1, 2]) == 2 and num_batches(iter([])) is None and num_batches(Endless()) == np.inf


def test_how_many_batches_tf_data_has():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.range(6)
    assert [num_batches(d) for d in (data, data.repeat(), data.filter(lambda x: x > 2))] == [6, np.inf, None]
