import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.pretraining import MaskedPatchPrediction, masking
from tests import tiny
from tests.errors import refuses
from tests.pretraining.images import numpy_patches, raw_images

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("channels, include_preprocessing", [(1, False), (3, False), (3, True), (4, True)])
def test_colours_equal_numpy(channels, include_preprocessing):
    constants = {"mean": 0.45, "std": 0.225}
    if channels == 3:
        constants = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    backbone = tiny.build(
        image_size=(17, 24), in_channels=channels, include_preprocessing=include_preprocessing, preprocessing=constants
    )
    model = MaskedPatchPrediction(backbone)
    raw = raw_images(3, 17, 24, channels)
    # The means of these patches are exactly on the bound of two colours, where rounding could decide.
    raw[0, :4, :4] = 32
    raw[0, :4, 4:8] = 127
    raw[0, 0, 4] = 143
    raw[0, 4:8, :4] = 255
    raw[0, 4:8, 4:8] = 0
    found = keras.ops.convert_to_numpy(model.colours(keras_vit.preprocess_input(raw, backbone)))
    # The colours are the upper three bits of each channel's mean.
    levels = numpy_patches(raw).reshape(3, -1, 16, channels).sum(axis=2, dtype="int64") // (16 * 32)
    assert levels.min() == 0 and levels.max() == 7
    if channels <= 3:
        levels = (levels * 8 ** np.arange(channels - 1, -1, -1)).sum(axis=-1, keepdims=True)
    np.testing.assert_array_equal(found, levels)
    assert model.head_shape == {1: (1, 8), 3: (1, 512), 4: (4, 8)}[channels]


def corrupted(patches, token, kind, source):
    """Replaces masked patches by a token and swapped ones by their sources."""
    others = np.take_along_axis(patches, source[..., None], axis=1)
    kind = kind[..., None]
    return np.where(kind == masking.MASKED, token, np.where(kind == masking.SWAPPED, others, patches))


def test_corrupted_embeddings_are_replaced_by_kind():
    model = MaskedPatchPrediction(tiny.build(), seed=0)
    patches = RNG.normal(size=(9, 16, 12)).astype("float32")
    hidden = model.draw(9, 3)
    kind, source = (keras.ops.convert_to_numpy(hidden[k]) for k in ("kind", "source"))
    assert set(kind.ravel()) == {0, 1, 2, 3}
    found = keras.ops.convert_to_numpy(model.corrupt(patches, hidden))
    token = keras.ops.convert_to_numpy(model.mask_token)[0, 0]
    np.testing.assert_array_equal(found, corrupted(patches, token, kind, source))


def test_shares_are_arguments_of_the_model():
    model = MaskedPatchPrediction(tiny.build(), mask_ratio=0.25, masked_share=0.3, swapped_share=0.7)
    kind = keras.ops.convert_to_numpy(model.draw(200, 0)["kind"])
    assert (np.bincount(kind.ravel(), minlength=4)[[0, 3]] == (2400, 0)).all()
    assert (kind == masking.MASKED).sum() / 800 == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("channels", [3, 4])
def test_loss_equals_numpy(channels):
    model = MaskedPatchPrediction(tiny.build(in_channels=channels, include_preprocessing=True))
    raw = raw_images(2, 16, 16, channels)
    logits = RNG.normal(size=(2, 16, *model.head_shape)).astype("float32")
    mask = RNG.random((2, 16)) < 0.5
    found = model.compute_loss(raw, None, {"prediction": keras.ops.convert_to_tensor(logits), "mask": mask})
    classes = keras.ops.convert_to_numpy(model.colours(raw))
    log_p = logits - np.log(np.exp(logits.astype("float64")).sum(axis=-1, keepdims=True))
    losses = -np.take_along_axis(log_p, classes[..., None], axis=-1)[..., 0].mean(axis=-1)
    np.testing.assert_allclose(float(found), losses[mask].mean(), rtol=1e-5)
    assert float(model.compute_loss(raw, None, {"prediction": logits, "mask": np.zeros_like(mask)})) == 0


def test_reconstruction_shows_the_predicted_colours():
    model = MaskedPatchPrediction(tiny.build(include_preprocessing=True))
    # The bias selects the colour with red 7, green 0 and blue 3.
    bias = np.zeros(512, "float32")
    bias[7 * 64 + 3] = 100
    model.head.set_weights([np.zeros((12, 512)), bias])
    images = raw_images(4, 16, 16, 3)
    original, masked, prediction = model.reconstruct(images, seed=1)
    np.testing.assert_array_equal(original, images)
    kind, source = (keras.ops.convert_to_numpy(model.draw(4, 1)[k]) for k in ("kind", "source"))
    patches = numpy_patches(images)
    np.testing.assert_array_equal(numpy_patches(masked), corrupted(patches, 127.5, kind, source))
    untouched = (kind == masking.UNTOUCHED)[..., None]
    colour = np.tile((240, 16, 112), 16)
    np.testing.assert_array_equal(numpy_patches(prediction), np.where(untouched, patches, colour))


def test_bad_arguments():
    shares = {"masked_share": 0.8, "swapped_share": 0.3}
    for arguments in ({"mask_ratio": 0}, {"mask_ratio": 1}, {"masked_share": -0.1}, shares):
        refuses("Expected", MaskedPatchPrediction, tiny.build(), **arguments)
    refuses("at least 2 patches", MaskedPatchPrediction, tiny.build(image_size=4))
