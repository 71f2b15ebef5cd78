import io

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit.models.classify import read_image
from keras_vit.preprocessing import Preprocessing
from tests import hostile_images
from tests.export.bodies import bad_images, encoded, pixels
from tests.tiny import build

tf = pytest.importorskip("tensorflow", reason="the graph is TensorFlow's")

from keras_vit.export.image_bytes import STATUSES, ImageReader  # noqa: E402

if keras.backend.backend() != "tensorflow":
    pytest.skip("the graph is TensorFlow's on every backend", allow_module_level=True)


def encoded_with_thumbnails(count):
    """A progressive JPEG of 64 x 64 pixels that holds as many progressive ones."""
    picture = Image.fromarray(pixels(3, (64, 64, 3)))
    file, thumbnail = io.BytesIO(), io.BytesIO()
    picture.resize((16, 16)).save(thumbnail, "JPEG", progressive=True)
    picture.save(file, "JPEG", progressive=True, exif=b"Exif\0\0" + thumbnail.getvalue() * count)
    return file.getvalue()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pictures of every kind of JPEG and PNG, enlarged and shrunk by the readers."""
    folder = tmp_path_factory.mktemp("pictures")
    large, small = Image.fromarray(pixels(3, (90, 70, 3))), Image.fromarray(pixels(4, (17, 23, 3)))
    for name, mode in (("rgb", "RGB"), ("grey", "L"), ("palette", "P"), ("alpha", "RGBA")):
        large.convert(mode).save(folder / f"{name}.png")
    for name, mode in (("rgb", "RGB"), ("grey", "L"), ("cmyk", "CMYK")):
        large.convert(mode).save(folder / f"{name}.jpg")
    large.save(folder / "progressive.jpg", progressive=True)
    small.save(folder / "small.jpg")
    return sorted(folder.iterdir())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crop_fraction", [1.0, 0.8])
@pytest.mark.parametrize(("interpolation", "tolerance"), [("bilinear", 0.01), ("bicubic", 1), ("lanczos3", 1)])
def test_files_are_read_as_predictions_read_them(files, channels, crop_fraction, interpolation, tolerance):
    size = (32, 40)
    preprocessing = {"interpolation": interpolation, "crop_fraction": crop_fraction}
    model = build(image_size=size, in_channels=channels, **preprocessing)
    images, status, _ = ImageReader(size, channels, Preprocessing(**preprocessing))(
        [file.read_bytes() for file in files]
    )
    assert not status.numpy().any()
    for file, image in zip(files, images.numpy(), strict=True):
        # Pillow and libjpeg turn CMYK into RGB with a rounding each; grey is rounded before the resize.
        allowed = tolerance + (channels == 1) + 2 * (file.stem == "cmyk")
        np.testing.assert_allclose(image, read_image(file, model), atol=allowed, err_msg=file.name)


@pytest.mark.parametrize("interpolation", ["nearest", "area", "lanczos5"])
def test_the_other_filters_give_an_image_of_the_same_picture(files, interpolation):
    reader, plain = (
        ImageReader((9, 7), preprocessing=Preprocessing(interpolation=kind)) for kind in (interpolation, "bicubic")
    )
    data = [file.read_bytes() for file in files]
    assert np.abs(reader(data)[0] - plain(data)[0]).mean() < 30


def test_every_row_has_its_own_status():
    bad = bad_images()
    rows = [encoded(0), *(data for data, _ in bad.values()), encoded(1, "PNG")]
    images, status, _ = ImageReader((8, 8))(rows)
    names = [STATUSES[i] for i in status.numpy()]
    assert names == ["ok", *(status for _, status in bad.values()), "ok"]
    assert not images.numpy()[1:-1].any() and images.numpy()[[0, -1]].any(axis=(1, 2, 3)).all()


def test_pixels_are_limited_before_they_are_decoded():
    data = encoded(0)
    assert [ImageReader((8, 8), max_pixels=limit)([data])[1].numpy().tolist() for limit in (600, 599)] == [[0], [2]]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (hostile_images.jpeg_scans(64, 14), "ok"),
        (hostile_images.jpeg_scans(64, 20), "too_large"),
        (hostile_images.jpeg_scans(64, 20, hostile_images.segment(0xFE, b"\xff\xd9")), "too_large"),
        (hostile_images.jpeg_sequential(64, 10), "too_large"),
        (hostile_images.png_text(b"zTXt", 9), "too_large"),
        (hostile_images.png_text(b"iTXt", 9), "too_large"),
        (hostile_images.png(64, 64, rows=63), "damaged"),
        (hostile_images.png(64, 65), "too_large"),
        # Thumbnails have scans of their own.
        (encoded_with_thumbnails(3), "ok"),
    ],
    ids=str,
)
def test_a_small_file_cannot_ask_for_much_work(data, status):
    assert STATUSES[int(ImageReader((8, 8), max_pixels=64 * 64)([data])[1][0])] == status


def test_a_long_thin_image_costs_no_more_than_another():
    file = tf.io.encode_png(np.full((1, 16_384, 3), 7, "uint8")).numpy()
    images, status, _ = ImageReader((224, 224), preprocessing=Preprocessing(crop_fraction=0.9))([file])
    assert status.numpy().tolist() == [0]
    np.testing.assert_allclose(images, 7, atol=1e-3)
