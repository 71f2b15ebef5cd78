import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.pretraining import MaskedPatchPrediction, masking
from tests import tiny

RNG = np.random.default_rng(0)


def raw_images(*shape):
    return RNG.integers(0, 256, shape).astype("uint8")


def numpy_colours(images, patch):
    """The upper three bits of each patch's mean 8-bit colour, (batch, num_patches, channels)."""
    batch, height, width, channels = images.shape
    rows, columns = height // patch, width // patch
    images = images[:, : rows * patch, : columns * patch].astype("int64")
    sums = images.reshape(batch, rows, patch, columns, patch, channels).sum(axis=(2, 4))
    return (sums // (patch**2 * 32)).reshape(batch, rows * columns, channels)


@pytest.mark.parametrize("include_preprocessing", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_colours_equal_numpy(channels, include_preprocessing):
    constants = {"mean": 0.45, "std": 0.225}
    if channels == 3:
        constants = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    backbone = tiny.build(
        image_size=(17, 24), in_channels=channels, include_preprocessing=include_preprocessing, **constants
    )
    model = MaskedPatchPrediction(backbone)
    raw = raw_images(3, 17, 24, channels)
    # Means that lie on the bound of two colours exactly, where rounding could decide: 15 / 16 * 32 + 1 / 16 * 32.
    raw[0, :4, :4] = 32
    raw[0, :4, 4:8] = 127
    raw[0, 0, 4] = 143
    raw[0, 4:8, :4] = 255
    raw[0, 4:8, 4:8] = 0
    found = keras.ops.convert_to_numpy(model.colours(keras_vit.preprocess_input(raw, backbone)))
    levels = numpy_colours(raw, 4)
    assert levels.min() == 0 and levels.max() == 7
    if channels <= 3:
        levels = (levels * 8 ** np.arange(channels - 1, -1, -1)).sum(axis=-1, keepdims=True)
    np.testing.assert_array_equal(found, levels)
    classes = {1: (1, 8), 2: (1, 64), 3: (1, 512), 4: (4, 8)}[channels]
    assert model.head_shape == classes


def test_corrupted_embeddings_are_replaced_as_drawn():
    model = MaskedPatchPrediction(tiny.build(), seed=0)
    patches = RNG.normal(size=(9, 16, 12)).astype("float32")
    hidden = model.draw(9, 3)
    kind, source = (keras.ops.convert_to_numpy(hidden[k]) for k in ("kind", "source"))
    assert set(kind.ravel()) == {0, 1, 2, 3}
    found = keras.ops.convert_to_numpy(model.corrupt(patches, hidden))
    token = keras.ops.convert_to_numpy(model.mask_token)[0, 0]
    for i, j in np.ndindex(9, 16):
        expected = {masking.MASKED: token, masking.SWAPPED: patches[i, source[i, j]]}.get(kind[i, j], patches[i, j])
        np.testing.assert_array_equal(found[i, j], expected)


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


def test_reconstruction_shows_the_predicted_colours():
    backbone = tiny.build(include_preprocessing=True)
    model = MaskedPatchPrediction(backbone)
    # A bias for one colour: red 7, green 0, blue 3.
    bias = np.zeros(512, "float32")
    bias[7 * 64 + 3] = 100
    model.head.set_weights([np.zeros((12, 512)), bias])
    images = raw_images(4, 16, 16, 3)
    original, masked, prediction = model.reconstruct(images, seed=1)
    np.testing.assert_array_equal(original, images)
    kind, source = (keras.ops.convert_to_numpy(model.draw(4, 1)[k]) for k in ("kind", "source"))
    for i, j in np.ndindex(4, 16):
        place = np.s_[i, j // 4 * 4 :, j % 4 * 4 :][:3]
        other = np.s_[i, source[i, j] // 4 * 4 :, source[i, j] % 4 * 4 :][:3]
        shown = {masking.MASKED: np.full((4, 4, 3), 127.5), masking.SWAPPED: images[other][:4, :4]}
        np.testing.assert_array_equal(masked[place][:4, :4], shown.get(kind[i, j], images[place][:4, :4]))
        expected = (
            images[place][:4, :4] if kind[i, j] == masking.UNTOUCHED else np.broadcast_to((240, 16, 112), (4, 4, 3))
        )
        np.testing.assert_array_equal(prediction[place][:4, :4], expected)


@pytest.mark.parametrize(
    "arguments",
    [{"mask_ratio": 0}, {"mask_ratio": 1}, {"masked_share": -0.1}, {"masked_share": 0.8, "swapped_share": 0.3}],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match="Expected"):
        MaskedPatchPrediction(tiny.build(), **arguments)


def test_one_patch_is_refused():
    with pytest.raises(ValueError, match="at least 2 patches"):
        MaskedPatchPrediction(tiny.build(image_size=4))
