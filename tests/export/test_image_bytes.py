import io

import numpy as np
import pytest
from PIL import Image

from keras_vit.config import Preprocessing
from keras_vit.prediction.classify import read_image
from tests import hostile_images
from tests.export.bodies import encoded, pixels
from tests.memory import needs_linux, peak
from tests.tiny import build

tf = pytest.importorskip("tensorflow")

from keras_vit.export.signatures import STATUSES, ImageReader  # noqa: E402


def encoded_with_thumbnails(count):
    """Returns a progressive JPEG of 64 x 64 pixels with progressive thumbnails."""
    picture = Image.fromarray(pixels(3, (64, 64, 3)))
    file, thumbnail = io.BytesIO(), io.BytesIO()
    picture.resize((16, 16)).save(thumbnail, "JPEG", progressive=True)
    picture.save(file, "JPEG", progressive=True, exif=b"Exif\0\0" + thumbnail.getvalue() * count)
    return file.getvalue()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pictures of every kind of JPEG and PNG, smaller and larger than the models' images."""
    folder = tmp_path_factory.mktemp("pictures")
    large, small = Image.fromarray(pixels(3, (90, 70, 3))), Image.fromarray(pixels(4, (17, 23, 3)))
    for name, mode in (("rgb", "RGB"), ("grey", "L"), ("palette", "P"), ("alpha", "RGBA")):
        large.convert(mode).save(folder / f"{name}.png")
    for name, mode in (("rgb", "RGB"), ("grey", "L"), ("cmyk", "CMYK")):
        large.convert(mode).save(folder / f"{name}.jpg")
    large.save(folder / "progressive.jpg", progressive=True)
    small.save(folder / "small.jpg")
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    "channels, crop_fraction, interpolation, tolerance",
    [(3, 1.0, "bilinear", 0.01), (1, 0.8, "bilinear", 0.01), (3, 0.8, "bicubic", 1), (1, 1.0, "lanczos3", 1)],
)
def test_files_are_decoded_as_by_read_image(files, channels, crop_fraction, interpolation, tolerance):
    size = (32, 40)
    preprocessing = {"interpolation": interpolation, "crop_fraction": crop_fraction}
    model = build(image_size=size, in_channels=channels, preprocessing=preprocessing)
    reader = ImageReader(size, channels, Preprocessing(**preprocessing))
    images, status, _ = reader([file.read_bytes() for file in files])
    assert not status.numpy().any()
    for file, image in zip(files, images.numpy(), strict=True):
        # Pillow and libjpeg round CMYK differently. A gray value is rounded before the resize.
        allowed = tolerance + (channels == 1) + 2 * (file.stem == "cmyk")
        np.testing.assert_allclose(image, read_image(file, model), atol=allowed, err_msg=file.name)


@pytest.mark.parametrize(
    "data, status",
    [
        (hostile_images.jpeg_scans(64, 14), "ok"),
        (hostile_images.jpeg_scans(64, 20), "too_large"),
        (hostile_images.jpeg_scans(64, 20, hostile_images.segment(0xFE, b"\xff\xd9")), "too_large"),
        (hostile_images.jpeg_sequential(64, 10), "too_large"),
        (hostile_images.png_text(b"zTXt", 9), "too_large"),
        (hostile_images.png_text(b"iTXt", 9), "too_large"),
        (hostile_images.png(64, 64, rows=63), "damaged"),
        (hostile_images.png(8, 8, before=hostile_images.chunk(b"abCd", b"") * 5000), "damaged"),
        (hostile_images.png(64, 65), "too_large"),
        # The scans of thumbnails do not count.
        (encoded_with_thumbnails(3), "ok"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_costly_small_file_has_status(data, status):
    assert STATUSES[int(ImageReader((8, 8), max_pixels=64 * 64)([data])[1][0])] == status


@needs_linux
def test_chunk_beyond_end_takes_no_memory():
    reader = tf.function(ImageReader((8, 8)), autograph=False, input_signature=[tf.TensorSpec((None,), "string")])
    reader([encoded(0)] * 4)
    for kind in hostile_images.CHUNKS:
        with_chunk, found = hostile_images.long_chunk(kind), []
        assert peak(lambda data=with_chunk, found=found: found.extend(reader([data] * 4)[1].numpy())) < 50, kind
        assert [STATUSES[status] for status in found] == ["damaged"] * 4
    assert reader([hostile_images.long_parts()["JPEG, comment of 65 kB"]])[1].numpy() == [STATUSES.index("damaged")]


def test_long_thin_image_is_cropped_before_resize():
    file = tf.io.encode_png(np.full((1, 16_384, 3), 7, "uint8")).numpy()
    images, status, _ = ImageReader((224, 224), preprocessing=Preprocessing(crop_fraction=0.9))([file])
    assert status.numpy().tolist() == [0]
    np.testing.assert_allclose(images, 7, atol=1e-3)
