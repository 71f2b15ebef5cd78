import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from tests.errors import refuses
from tests.models.small import answers
from tests.tiny import build, randomize

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def raw(dtype="uint8"):
    return np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3)).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "float64"])
def test_preprocess_input_without_model(dtype):
    y = keras_vit.preprocess_input(raw(dtype))
    assert isinstance(y, np.ndarray) and y.dtype == "float32"
    np.testing.assert_array_equal(y, (raw("float32") - 127.5) / 127.5)


def test_constants_survive_files_clones_and_nesting(tmp_path):
    model = build(preprocessing=IMAGENET)
    expected = keras_vit.preprocess_input(raw(), model)
    formula = (raw("float64") / 255 - IMAGENET["mean"]) / IMAGENET["std"]
    np.testing.assert_allclose(expected, formula, atol=1e-5)
    model.save(tmp_path / "model.keras")
    inputs = keras.Input((16, 16, 3))
    nested = keras.Model(inputs, keras.layers.Dense(2)(build(preprocessing=IMAGENET)(inputs)))
    deeper = keras.Sequential([inputs, keras.Sequential([keras.Input((16, 16, 3)), nested])])
    for again in (keras.saving.load_model(tmp_path / "model.keras"), keras.models.clone_model(model), nested, deeper):
        np.testing.assert_array_equal(keras_vit.preprocess_input(raw(), again), expected)


def test_include_preprocessing_equals_preprocess_input():
    inside, outside = (randomize(build(include_preprocessing=p, preprocessing=IMAGENET)) for p in (True, False))
    images = keras_vit.preprocess_input(raw(), inside)
    np.testing.assert_array_equal(images, raw("float32"))
    expected = answers(outside, keras_vit.preprocess_input(raw(), outside))
    np.testing.assert_allclose(answers(inside, images), expected, atol=1e-4)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_preprocess_input_of_backend_tensors(data_format):
    images, models = raw()[:, :3, :3], (None, build(preprocessing=IMAGENET), build(include_preprocessing=True))
    keras.config.set_image_data_format(data_format)
    try:
        found = [keras_vit.preprocess_input(ops.convert_to_tensor(images), model) for model in models]
    finally:
        keras.config.set_image_data_format("channels_last")
    for y, model in zip(found, models, strict=True):
        assert keras.backend.is_keras_tensor(y) is False and keras.backend.standardize_dtype(y.dtype) == "float32"
        np.testing.assert_allclose(ops.convert_to_numpy(y), keras_vit.preprocess_input(images, model), atol=1e-5)


def test_preprocess_input_in_tf_data():
    tf = pytest.importorskip("tensorflow")
    for model in (None, build(preprocessing=IMAGENET)):
        data = tf.data.Dataset.from_tensor_slices(raw()).map(lambda x, m=model: keras_vit.preprocess_input(x, m))
        y = np.stack(list(data.as_numpy_iterator()))
        np.testing.assert_allclose(y, keras_vit.preprocess_input(raw(), model), atol=1e-5)


@pytest.mark.parametrize("bad", [256.0, -1.0, np.nan])
def test_images_out_of_range_are_refused(bad):
    refuses(r"Expected images of 0\.\.255", keras_vit.preprocess_input, np.full((1, 2, 2, 3), bad))


def test_preprocess_input_needs_constants_for_the_channels():
    inputs = keras.Input((4,))
    refuses("normalization", keras_vit.preprocess_input, raw(), keras.Model(inputs, keras.layers.Dense(2)(inputs)))
    for gray in (raw()[..., :1], ops.convert_to_tensor(raw()[..., :1])):
        refuses("the images' 1 channels", keras_vit.preprocess_input, gray, build(preprocessing=IMAGENET))


@pytest.mark.parametrize("model", [None, {}, {"include_preprocessing": True}])
def test_images_scaled_to_0_to_1_are_refused(model):
    model = None if model is None else build(**model)
    with pytest.raises(ValueError, match=r"Expected images of 0\.\.255. Received: values from 0.0 to 1.0, which look"):
        keras_vit.preprocess_input(raw() / 255, model)
    for black in (np.zeros((1, 2, 2, 3)), np.ones((1, 2, 2, 3))):
        assert keras_vit.preprocess_input(black).max() < 0


def test_preprocess_input_refuses_paths_and_complex_numbers():
    refuses("`x`. Expected an array of real numbers", keras_vit.preprocess_input, np.zeros((1, 2, 2, 3), complex))
    message = "`x`. Expected an array of images, as keras_vit.read_image.*Received: 'cat.jpg'"
    refuses(message, keras_vit.preprocess_input, "cat.jpg")


def test_preprocess_input_keeps_the_device_of_its_images():
    import torch

    images = torch.full((1, 4, 4, 3), 255.0)
    # As images on the CPU, and Keras on a GPU.
    with keras.device("meta"):
        actual = keras_vit.preprocess_input(images)
    np.testing.assert_allclose(actual.numpy(), 1)
