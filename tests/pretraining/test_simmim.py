import keras
import numpy as np
import pytest

from keras_vit.pretraining import SimMIM
from tests import tiny
from tests.errors import refuses
from tests.pretraining.images import numpy_patches, raw_images

RNG = np.random.default_rng(0)


def test_loss_equals_numpy():
    options = {"preprocessing": {"mean": 0.4, "std": 0.3}, "include_preprocessing": True}
    model = SimMIM(tiny.build(image_size=(17, 24), **options), mask_unit=8)
    raw = raw_images(2, 17, 24)
    prediction = RNG.normal(size=(2, 24, 48)).astype("float32")
    mask = RNG.random((2, 24)) < 0.5
    found = model.compute_loss(raw, None, {"prediction": keras.ops.convert_to_tensor(prediction), "mask": mask})
    pixels = numpy_patches((raw / 255 - 0.4) / 0.3)
    # The official code repeats the mask to pixels, but not to channels.
    pixel_mask = np.repeat(mask[..., None], 16, axis=-1)
    expected = (np.abs(prediction - pixels) * mask[..., None]).sum() / (pixel_mask.sum() + 1e-5) / 3
    np.testing.assert_allclose(float(found), expected, rtol=1e-5)


def test_masked_pixels_do_not_change_the_prediction():
    model = SimMIM(tiny.randomize(tiny.build()), mask_unit=4)
    images = RNG.normal(size=(2, 16, 16, 3)).astype("float32")
    hidden = model.draw(2, 0)
    mask = keras.ops.convert_to_numpy(hidden["mask"])
    pixels = np.kron(mask.reshape(2, 4, 4), np.ones((4, 4), bool))[..., None].astype(bool)
    other = np.where(pixels, RNG.normal(size=images.shape).astype("float32"), images)
    visible = np.where(pixels, images, RNG.normal(size=images.shape).astype("float32"))
    results = [keras.ops.convert_to_numpy(model(x, hidden=hidden)["prediction"]) for x in (images, other, visible)]
    np.testing.assert_array_equal(results[0], results[1])
    assert np.abs(results[0] - results[2]).max() > 1e-3
    # Masked patches differ by their positions.
    first = results[0][0][mask[0]]
    assert np.abs(first - first[0]).max() > 1e-3


def test_reconstruction_shows_predicted_pixels():
    constants = {"mean": (0.2, 0.4, 0.5), "std": (0.1, 0.3, 0.2)}
    model = SimMIM(tiny.build(preprocessing=constants, include_preprocessing=True), mask_unit=8)
    model.head.set_weights([np.zeros((12, 48)), np.tile([1.0, 0.5, -0.5], 16)])
    images = raw_images(3)
    original, masked, prediction = model.reconstruct(images, seed=0)
    np.testing.assert_array_equal(original, images)
    mask = keras.ops.convert_to_numpy(model.draw(3, 0)["mask"]).reshape(3, 4, 4)
    # 60% of four squares, rounded up, are three squares of four patches each.
    assert (mask.sum(axis=(1, 2)) == 12).all()
    pixels = np.kron(mask, np.ones((4, 4))).astype(bool)[..., None]
    np.testing.assert_array_equal(masked, np.where(pixels, 127.5, images))
    np.testing.assert_allclose(prediction, np.where(pixels, [0.3 * 255, 0.55 * 255, 0.4 * 255], images), atol=1e-3)


@pytest.mark.parametrize(
    "image_size, patch_size, unit",
    [(224, 16, (32, 32)), (64, 16, (16, 16)), (56, 14, (14, 14)), (224, 14, (28, 28))],
)
def test_default_mask_unit_fits_the_image(image_size, patch_size, unit):
    assert SimMIM(tiny.build(image_size=image_size, patch_size=patch_size)).mask_unit == unit


def test_mask_unit_is_whole_patches_but_not_the_image():
    for options in ({"mask_unit": 16}, {"mask_unit": 8, "mask_ratio": 0.8}):
        refuses("`mask_unit`. Expected smaller squares, .* hides all", SimMIM, tiny.build(), **options)
    expected = "`mask_unit`. Expected whole patches, which are 4 x 4 pixels. Received: 6"
    refuses(expected, SimMIM, tiny.build(), mask_unit=6)
    frozen = tiny.build()
    assert SimMIM(frozen, mask_unit=(4, 8)).mask_unit == (4, 8)
    frozen.trainable = False
    refuses("Expected a `backbone` with trainable weights", SimMIM, frozen)
