"""Orientation, transparency and depth of images in all decoders: Pillow, TensorFlow and the exported signature."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from keras_vit.data import from_directory, resize_folder
from keras_vit.images.files import read_pixels

pytestmark = pytest.mark.backends("tensorflow")
ROWS, COLUMNS = np.mgrid[:16, :24]
PIXELS = np.stack([ROWS * 15, COLUMNS * 10, np.full_like(ROWS, 60)], -1).astype("uint8")


def encoded(image, kind="PNG", orientation=None, **options):
    file = io.BytesIO()
    if orientation is not None:
        options["exif"] = exif(orientation)
    image.save(file, kind, **options)
    return file.getvalue()


def exif(orientation, order="little"):
    entries = [(0x010F, 2, 3), (0x0112, 3, orientation)]
    mark, zero = {"little": (b"II*\0", 2), "big": (b"MM\0*", 2)}[order]
    block = mark + (8).to_bytes(4, order) + len(entries).to_bytes(2, order)
    for tag, kind, value in entries:
        block += tag.to_bytes(2, order) + kind.to_bytes(2, order) + (1).to_bytes(4, order)
        block += value.to_bytes(2, order) + bytes(zero)
    return b"Exif\0\0" + block + bytes(4)


def in_tensorflow(data, channels=3):
    import tensorflow as tf

    from keras_vit.images.files import decode_image

    return tf.function(lambda x: decode_image(x, channels))(tf.constant(data)).numpy()


def served(data, size):
    from keras_vit import Preprocessing
    from keras_vit.export.signatures import ImageReader

    images, status, _ = ImageReader(size, 3, Preprocessing(interpolation="nearest"))([data])
    assert status.numpy().tolist() == [0]
    return images.numpy()[0]


def check_all_decoders(data, expected, atol=0):
    """Compares what each decoder makes of a file with `expected`."""
    np.testing.assert_allclose(read_pixels(data).astype(int), expected, atol=atol)
    np.testing.assert_allclose(in_tensorflow(data).astype(int), expected, atol=atol)
    np.testing.assert_allclose(served(data, expected.shape[:2]), expected, atol=atol)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_in_every_decoder(kind, orientation):
    options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
    data = encoded(Image.fromarray(PIXELS), kind, orientation, **options)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB")).astype(int)
    assert expected.shape == ((24, 16, 3) if orientation > 4 else (16, 24, 3))
    check_all_decoders(data, expected, atol=1)


BLOCK = exif(6)
THUMBNAIL = encoded(Image.fromarray(PIXELS), "JPEG")
BLOCKS = {
    "big endian": (exif(6, "big"), True),
    "with a thumbnail": (BLOCK + THUMBNAIL, True),
    "cut within the tag": (BLOCK[:-10], False),
    "cut within the header": (BLOCK[:12], False),
    "without a byte order": (BLOCK.replace(b"II*", b"XX*"), False),
    "tags beyond the end": (BLOCK.replace(b"\x08\0\0\0", b"\xff\xff\xff\xff"), False),
    "more tags than bytes": (BLOCK.replace(b"\x02\0\x0f\x01", b"\xff\xff\x0f\x01"), True),
    "orientation of 0": (exif(0), False),
    "orientation of 9": (exif(9), False),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_orientation_of_damaged_or_unusual_block(name):
    block, turned = BLOCKS[name]
    segment = b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block
    data = THUMBNAIL[:2] + segment + THUMBNAIL[2:]
    for made in (read_pixels(data), in_tensorflow(data)):
        assert made.shape == ((24, 16, 3) if turned else (16, 24, 3))


def test_orientation_of_a_later_image_is_not_applied():
    data = THUMBNAIL + encoded(Image.fromarray(PIXELS), "JPEG", 6)
    assert read_pixels(data).shape == in_tensorflow(data).shape == (16, 24, 3)


def test_orientation_of_other_formats():
    for kind in ("WEBP", "TIFF"):
        for image in map(Image.fromarray, (PIXELS, np.dstack([PIXELS, PIXELS[..., :1]]))):
            data = encoded(image, kind, exif=exif(6)[6:] if kind == "TIFF" else exif(6))
            assert read_pixels(data).shape == (24, 16, 3)


def transparent(mode):
    """Returns a picture whose left half is transparent and hides other colors."""
    alpha = np.where(COLUMNS < 12, 0, 255).astype("uint8")
    image = Image.fromarray(np.dstack([PIXELS, alpha]))
    if mode == "P":
        image = Image.fromarray(np.where(COLUMNS < 12, 0, 1 + ROWS).astype("uint8"))
        image.putpalette([200, 0, 0, *(value for row in range(16) for value in (row * 15, 50, 60))])
        return image, {"transparency": 0}
    if mode == "L":
        return Image.fromarray(np.where(COLUMNS < 12, 7, 50 + ROWS).astype("uint8")), {"transparency": 7}
    return image.convert(mode), {}


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L"])
def test_transparent_pixels_are_white_in_every_decoder(mode):
    image, options = transparent(mode)
    data = encoded(image, **options)
    white = Image.new("RGBA", image.size, "white")
    with Image.open(io.BytesIO(data)) as read:
        expected = np.asarray(Image.alpha_composite(white, read.convert("RGBA")).convert("RGB")).astype(int)
    assert (expected[:, :12] == 255).all() and expected[:, 12:].mean() < 200
    check_all_decoders(data, expected)
    gray = [read_pixels(data, 1), in_tensorflow(data, 1)]
    np.testing.assert_allclose(gray[0].astype(int), gray[1], atol=1)
    assert (gray[0][:, :12] == 255).all()
    for each in (data, encoded(image.convert("1"))):
        np.testing.assert_array_equal(in_tensorflow(each, 4), read_pixels(each, 4))


def test_half_transparent_pixels_mix_with_white():
    alpha = np.arange(16 * 24).reshape(16, 24) % 256
    data = encoded(Image.fromarray(np.dstack([PIXELS, alpha.astype("uint8")])))
    share = alpha[..., None] / 255
    check_all_decoders(data, np.round(PIXELS * share + 255 * (1 - share)).astype(int))


@pytest.mark.parametrize("factor, shift", [(16, 4), (256, 8)])
def test_gray_images_of_12_and_16_bits(factor, shift):
    values = (np.arange(16 * 24).reshape(16, 24) % 256 * factor).astype("uint16")
    expected = np.repeat((values >> shift)[..., None], 3, -1).astype(int)
    check_all_decoders(encoded(Image.fromarray(values)), expected)
    np.testing.assert_array_equal(read_pixels(encoded(Image.fromarray(values), "TIFF")), expected)
    np.testing.assert_array_equal(in_tensorflow(encoded(Image.fromarray(values)), 4)[..., :3], expected)


def test_pipelines_and_resized_folder_are_upright(tmp_path):
    for name in "ab":
        (tmp_path / "photos" / name).mkdir(parents=True)
        stored = Image.fromarray(np.rot90(PIXELS).copy())
        (tmp_path / "photos" / name / "x.jpg").write_bytes(encoded(stored, "JPEG", 6, quality=100, subsampling=0))
    assert resize_folder(tmp_path / "photos", tmp_path / "small", shorter_side=8) == {}
    assert read_pixels(tmp_path / "small" / "a" / "x.jpg").shape == (8, 12, 3)
    options = {"image_size": (16, 24), "normalize": False, "labels": "none", "flip": False}
    evaluated = next(iter(from_directory(tmp_path / "photos", **options)))[0].numpy()
    np.testing.assert_allclose(evaluated, PIXELS, atol=3)
    # The columns get greener from left to right, in any crop.
    for crop, scale in (("finetune", None), ("pretrain", (0.5, 1.0))):
        cropped = next(iter(from_directory(tmp_path / "photos", **options, crop=crop, scale=scale)))[0].numpy()
        assert cropped[:, -4:, 1].mean() > cropped[:, :4, 1].mean() + 50
        assert abs(cropped[:, -4:, 0].mean() - cropped[:, :4, 0].mean()) < 3
