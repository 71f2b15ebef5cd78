import keras
import numpy as np
import pytest

from keras_vit.prediction.classify import classify, read_image
from tests.errors import not_found, refuses
from tests.models.small import answers
from tests.tiny import build, randomize

COLUMNS = np.linspace(0, 255, 30).astype("uint8").astype("float32")


@pytest.fixture
def photo(tmp_path):
    """Writes a picture of 20 x 30 pixels with one colour per column."""
    path = tmp_path / "photo.png"
    keras.utils.save_img(path, np.broadcast_to(COLUMNS[None, :, None], (20, 30, 3)), scale=False)
    return path


def test_read_image_without_crop_resizes_the_whole(photo):
    image = read_image(photo, build(image_size=(10, 15)))
    assert image.shape == (10, 15, 3) and image.dtype == "float32"
    # Bilinear resizing to half the size without antialiasing averages two columns.
    np.testing.assert_allclose(image[3, :, 0], COLUMNS.reshape(15, 2).mean(axis=1), atol=1e-3)


def test_read_image_for_any_size_and_other_channels(photo):
    assert read_image(photo, build(image_size=(None, None))).shape == (20, 30, 3)
    assert read_image(photo, build(in_channels=1)).shape == (16, 16, 1)
    refuses("1, 3 or 4 channels", read_image, photo, build(in_channels=5))


def test_classify_returns_the_softmax_of_the_logits(photo):
    model = randomize(build(include_preprocessing=True))
    (found,) = classify(model, [photo], top=5)
    logits = answers(model, read_image(photo, model)[None])[0]
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert [int(name) for _, name, _ in found] == np.argsort(-expected).tolist()
    np.testing.assert_allclose([p for *_, p in found], np.sort(expected)[::-1], rtol=1e-4)


def test_classify_bad_input_is_named(photo, tmp_path):
    model = build()
    (tmp_path / "text.png").write_text("no image")
    for broken in ("raise", "skip"):
        refuses(r"text\.png.*Pillow does not support it", classify, model, [tmp_path / "text.png"], broken=broken)
    not_found("nowhere", classify, model, [tmp_path / "nowhere.png"])
    refuses("`top` between 1 and 5", classify, model, [photo], top=6)
    two = [keras.Input((8, 8, 3)), keras.Input((4,))]
    shapes = r"\[\(None, 8, 8, 3\), \(None, 4\)\]"
    for other, inputs in ((keras.Model(two, two[0]), shapes), (keras.Sequential([keras.layers.Dense(2)]), r"\[\]")):
        refuses(f"a model of images, .* Received: inputs {inputs}", read_image, photo, other)
    refuses("Expected a model with a head", classify, build(num_classes=0), [photo])
    refuses("one output", classify, build(distillation_token=True, return_both_heads=True), [photo])


def test_classify_with_own_head_uses_its_class_names(photo):
    backbone = build(num_classes=0, class_names=None)
    own = keras.Model(backbone.input, keras.layers.Dense(2, name="own")(backbone.output))
    assert {name for _, name, _ in classify(own, [photo])[0]} == {"0", "1"}
    backbone.get_layer("normalization").class_names = ["cat", "dog"]
    assert {name for _, name, _ in classify(own, [photo])[0]} == {"cat", "dog"}
    nested = keras.Sequential([keras.Input((16, 16, 3)), backbone, keras.layers.Dense(2)])
    assert {name for _, name, _ in classify(nested, [photo])[0]} == {"cat", "dog"}


def test_classify_batches_equal_single_images(photo, tmp_path):
    for i in range(4):
        keras.utils.save_img(tmp_path / f"{i}.png", np.full((9, 9 + i, 3), 60.0 * i), scale=False)
    paths = [tmp_path / f"{i}.png" for i in (2, 0, 3, 1)] + [photo]
    for size in (16, (None, None)):
        model = randomize(build(image_size=size))
        found = classify(model, paths, batch_size=2)
        for path, classes in zip(paths, found, strict=True):
            (alone,) = classify(model, [path])
            assert [name for _, name, _ in classes] == [name for _, name, _ in alone]
            np.testing.assert_allclose([p for *_, p in classes], [p for *_, p in alone], atol=1e-5)
