import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import Preprocessing
from keras_vit.data import Crop
from tests import hostile_images
from tests.data.images import HUGE_PNG, jpeg, picture
from tests.errors import refuses


def test_finetune_crop_lies_in_resized_image():
    image = picture(100, (50, 40, 3))
    resized = tf.image.resize(image, (20, 20)).numpy()
    crop = Crop((16, 16), "finetune", resize_size=(20, 20))(tf.io.encode_png(image), (3, 4)).numpy()
    cuts = [resized[y : y + 16, x : x + 16] for y in range(5) for x in range(5)]
    assert sum(np.allclose(cut, crop, atol=1e-3) for cut in cuts) == 1


@pytest.mark.parametrize("size, resized", [(384, 448), (480, 512), (224, 256)])
def test_finetune_resize_sizes_match_paper(size, resized, monkeypatch):
    sizes = []
    resize = tf.image.resize
    monkeypatch.setattr(tf.image, "resize", lambda x, to, *rest, **options: sizes.append([*to]) or resize(x, to))
    assert Crop(size, "finetune")(jpeg(7), (0, 1)).shape == (size, size, 3)
    assert sizes and all(size == [resized, resized] for size in sizes)


def test_pretrain_crop_area_range_and_coverage():
    # Each pixel's value is its position, so that a crop shows its window.
    rows, columns = np.meshgrid(np.arange(200), np.arange(200), indexing="ij")
    png = tf.io.encode_png(np.stack([rows, columns, rows], -1).astype("uint8"))
    areas, centres = [], []
    for seed in range(100):
        crop = Crop((32, 32), scale=(0.2, 0.6))(png, (seed, 0)).numpy()
        height, width = (float(np.ptp(crop[..., c])) * 32 / 31 for c in (0, 1))
        assert 0.6 < width / height < 1.6
        areas.append(height * width / 200**2)
        centres.append(crop[..., :2].mean((0, 1)))
    assert 0.17 < min(areas) < 0.25 and 0.5 < max(areas) < 0.65
    np.testing.assert_allclose(np.mean(centres, 0), 100, atol=8)


def test_pad_shifts_image_over_black_border():
    pixels = np.random.default_rng(0).integers(1, 256, (16, 24, 1), np.uint8)
    padded = np.pad(pixels, ((2, 2), (3, 3), (0, 0)))
    crop, places = Crop((16, 24), "pad", channels=1), set()
    for seed in range(20):
        image = crop(tf.io.encode_png(pixels), (0, seed)).numpy()
        fits = [(y, x) for y in range(5) for x in range(7) if (padded[y : y + 16, x : x + 24] == image).all()]
        assert len(fits) == 1
        places.update(fits)
    assert len(places) > 10


@pytest.mark.parametrize("kind", ["pretrain", "finetune", "eval"])
def test_jpeg_crop_equals_crop_of_decoded_pixels(kind):
    crop = Crop((16, 16), kind, preprocessing=Preprocessing(crop_fraction=0.8))
    # The image is smooth, since the two ways interpolate colours differently at a window's edge.
    ramp = np.linspace(0, 255, 64)[:, None, None] * np.linspace(0, 1, 48)[None, :, None] * np.ones(3)
    encoded = tf.io.encode_jpeg(ramp.astype("uint8"), quality=100)
    png = tf.io.encode_png(tf.io.decode_jpeg(encoded))
    for seed in range(5):
        np.testing.assert_allclose(crop(encoded, (seed, 1)), crop(png, (seed, 1)), atol=3)


def test_flip_mirrors_half_of_images():
    ramp = np.tile(np.arange(32, dtype="uint8")[None, :, None], (32, 1, 1))
    crop = Crop((8, 8), "eval", flip=True, channels=1)
    flipped = [float(crop(tf.io.encode_png(ramp), (seed, 0))[0, 0, 0]) > 16 for seed in range(50)]
    assert 12 < sum(flipped) < 38


GRAY = picture(9, (20, 20, 1))
ENCODINGS = {
    "gray jpeg": tf.io.encode_jpeg(GRAY),
    "gray png": tf.io.encode_png(GRAY),
    "rgba png": tf.io.encode_png(np.dstack([picture(9, (20, 20, 3)), np.full((20, 20), 255, "uint8")])),
    "16 bit png": tf.io.encode_png(GRAY.astype("uint16") * 256),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_each_encoding_becomes_rgb(name):
    image = Crop((8, 8), "eval")(ENCODINGS[name], (0, 1))
    assert image.shape == (8, 8, 3) and float(tf.reduce_min(image)) >= 0 and 5 < float(tf.reduce_max(image)) < 60


@pytest.mark.parametrize("kind", ["eval", "pretrain"])
def test_cmyk_jpeg_becomes_gray(kind):
    file = io.BytesIO()
    Image.new("CMYK", (20, 20), (40, 40, 40, 0)).save(file, "JPEG")
    for encoded in (file.getvalue(), file.getvalue() + b"\0"):
        image = Crop((8, 8), kind, channels=1)(encoded, (0, 1))
        assert image.shape == (8, 8, 1) and abs(float(tf.reduce_max(image)) - 215) < 2


JPEG = jpeg(3)
BROKEN = {
    "empty": b"",
    "text": b"not an image",
    "truncated": JPEG[: len(JPEG) // 2],
    "only its last bytes lost": JPEG[:-40],
    "header only": JPEG[:20],
    "huge": HUGE_PNG,
    "many scans": hostile_images.jpeg_scans(64, 20),
    "many texts": hostile_images.png_text(b"zTXt", 9),
    "text of 2 GB": hostile_images.long_chunk(b"tEXt"),
    "webp chunk of 2 GB": hostile_images.long_parts()["WebP, chunk of 2 GB"],
    "png of few rows": hostile_images.png(16, 16, rows=15),
    "gif frame beyond its screen": hostile_images.gif(1, (8, 8), (400, 400)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_image_raises(name):
    for kind, seeds in (("pretrain", 3), ("eval", 1)):
        crop = Crop((8, 8), kind, max_pixels=64 * 64)
        for seed in range(seeds):
            with pytest.raises((tf.errors.OpError, ValueError, OSError)):
                crop(BROKEN[name], (seed, 1))


@pytest.mark.parametrize("kind, channels", [("GIF", 1), ("BMP", 3), ("WEBP", 4), ("GIF", 3)])
def test_pillow_decodes_other_formats(kind, channels):
    file, frames = io.BytesIO(), {"append_images": [Image.new("RGB", (30, 20))], "save_all": True}
    Image.new("RGB", (30, 20), "red").save(file, kind, **(frames if kind == "GIF" else {}))
    red = {1: [76], 3: [255, 0, 0], 4: [255, 0, 0, 255]}[channels]
    np.testing.assert_allclose(Crop((4, 4), channels=channels)(file.getvalue(), (0, 1))[1, 1], red, atol=4)


def test_max_pixels_is_inclusive():
    Crop((8, 8), max_pixels=24 * 20)(JPEG, (0, 1))
    refuses("max_pixels=479", Crop((8, 8), max_pixels=24 * 20 - 1), JPEG, (0, 1), error=tf.errors.InvalidArgumentError)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"scale": (0.5, 0.2)}, "`scale`. Expected"),
        ({"resize_size": (4, 4)}, r"`resize_size`. Expected at least \(8, 8\)"),
        ({"resize_size": 9, "kind": "pad"}, r"None with the crop 'pad', or .*. Received: \(9, 9\)"),
        ({"scale": (0.5, 1.0), "kind": "eval"}, "`scale`. Expected None with the crop .eval., or .*pretrain"),
    ],
)
def test_crop_refuses_invalid_argument(changes, message):
    refuses(message, Crop, **{"image_size": (8, 8), **changes})
