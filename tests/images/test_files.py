import io
import zlib

import numpy as np
import pytest
from PIL import Image

from keras_vit.images import files as image_files
from keras_vit.images.files import num_scans, read_pixels
from keras_vit.images.parts import check_parts
from tests import hostile_images
from tests.errors import refuses
from tests.pictures import write_jpegs

pytestmark = pytest.mark.backends("tensorflow")


@pytest.fixture(scope="module")
def scans_in_graph():
    """Counts scans in a compiled TensorFlow graph, as pipelines do."""
    import tensorflow as tf

    return tf.function(image_files._scans, input_signature=[tf.TensorSpec((), "string"), tf.TensorSpec((), "int64")])


def encoded(size=(40, 30), kind="JPEG", mode="RGB", **options):
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), "uint8")
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def test_read_pixels_from_path_or_bytes_matches_pillow(tmp_path):
    for file in write_jpegs(tmp_path, 3):
        color, gray = read_pixels(file), read_pixels(file.read_bytes(), channels=1)
        with Image.open(file) as picture:
            np.testing.assert_array_equal(color, np.asarray(picture.convert("RGB")))
            np.testing.assert_array_equal(gray[..., 0], np.asarray(picture.convert("L")))
        assert color.dtype == gray.dtype == np.uint8 and gray.shape[2] == 1
    refuses("Cannot read '9 bytes'. It is damaged, or Pillow does not support it", read_pixels, b"no image.")
    refuses("1, 3 or 4 channels. Received: 2", read_pixels, file, channels=2)


def test_pixels_of_unknown_range_are_refused():
    def tiff(values, dtype):
        file = io.BytesIO()
        Image.fromarray(np.array([values], dtype)).save(file, "TIFF")
        return file.getvalue()

    assert read_pixels(tiff([0, 7, 255], "int32"), 1).tolist() == [[[0], [7], [255]]]
    cases = [([0, 256], "int32", "integers from 0 to 256"), ([-1, 1], "int32", "integers from -1 to 1")]
    for values, dtype, received in (*cases, ([0, 0.5], "float32", "floating-point")):
        refuses(f"expected pixels of 8 .*received {received}", read_pixels, tiff(values, dtype))


thumbnail = encoded((16, 12), progressive=True)
# The file contains a thumbnail and, like files of cameras that film too, other bytes at its end.
photo = encoded(progressive=True, exif=b"Exif\0\0" + thumbnail) + np.random.default_rng(0).bytes(2_000_000)
JPEGS = {
    "baseline": (encoded(), 1),
    "progressive": (encoded(progressive=True), 10),
    "with a thumbnail": (photo, 10),
    "empty scans": (hostile_images.jpeg_scans(64, 40), 41),
    "an end inside a comment": (hostile_images.jpeg_scans(64, 40, hostile_images.segment(0xFE, b"\xff\xd9")), 41),
    "sequential": (hostile_images.jpeg_sequential(64, 7), 21),
    "only a start": (b"\xff\xd8\xff", 0),
    "cut within a segment": (encoded()[:150], 0),
}


@pytest.mark.parametrize("name", JPEGS)
def test_scans_are_counted_in_numpy_and_tensorflow(name, scans_in_graph):
    data, expected = JPEGS[name]
    assert num_scans(data) == expected
    assert int(scans_in_graph(data, 1000)) == expected


def test_scan_count_stops_after_too_many_segments(scans_in_graph):
    data = b"\xff\xd8" + hostile_images.segment(0xFE, b"") * 5000 + encoded()[2:]
    assert int(scans_in_graph(data, 7)) == 8
    refuses("at most .* segments", read_pixels, data)


PART = hostile_images.chunk(b"IDAT", zlib.compress(bytes(406)))
HOSTILE = {
    "scans": (hostile_images.jpeg_scans(64, 20), "at most 16 scans .* received 21"),
    "pixels": (hostile_images.png(65, 64), "at most 4096 pixels"),
    "side": (hostile_images.png(1, 70_000), "65535 a side"),
    "chunks": (hostile_images.png(8, 8, before=hostile_images.chunk(b"abCd", b"") * 5000), "at most .* chunks"),
    "texts": (hostile_images.png_text(b"zTXt", 20), ""),
    "few rows": (hostile_images.png(16, 16, rows=15), "fewer rows"),
    "few interlaced rows": (hostile_images.png(16, 16, interlace=1, data=PART), "fewer rows"),
    "more than Pillow allows": (hostile_images.png(16384, 16384, rows=1), "decompression bomb"),
    "frame beyond its screen": (hostile_images.gif(1, (8, 8), (400, 400)), ""),
    "truncated": (encoded()[:-200], "truncated"),
    "PostScript": (encoded(kind="EPS"), ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_by_name(tmp_path, name):
    data, reason = HOSTILE[name]
    (tmp_path / "x.img").write_bytes(data)
    most = {"side": 70_000, "more than Pillow allows": 300_000_000}.get(name, 4096)
    refuses(f"Cannot read .*x.img.*{reason}", read_pixels, tmp_path / "x.img", max_pixels=most)


@pytest.mark.parametrize("name", hostile_images.long_parts())
def test_part_beyond_end_of_file_is_refused(name):
    refuses("expected parts that end within the file", read_pixels, hostile_images.long_parts()[name])


def test_honest_files_of_all_formats_pass_check_of_parts():
    for kind, options in (
        *(("PNG", {}), ("JPEG", {"exif": b"Exif\0\0" + bytes(9)}), ("JPEG", {"progressive": True})),
        *(("WEBP", {}), ("WEBP", {"save_all": True, "lossless": True}), ("BMP", {}), ("JPEG2000", {})),
        *(("GIF", {"comment": b"a" * 700}), ("TIFF", {}), ("TIFF", {"big_tiff": True, "compression": "tiff_lzw"})),
    ):
        data = encoded(kind=kind, **options)
        check_parts(data)
        # Files may have other bytes behind their end, and the last checksum of a PNG may be missing.
        check_parts(data + bytes(100))
        assert read_pixels(data).shape == (30, 40, 3)
    check_parts(encoded(kind="PNG")[:-4])


def test_black_png_of_any_mode_is_complete():
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        file = io.BytesIO()
        Image.new(mode, (13, 7)).save(file, "PNG")
        assert read_pixels(file.getvalue()).shape == (7, 13, 3)
    assert not read_pixels(hostile_images.png(13, 7, interlace=1)).any()
    assert not read_pixels(hostile_images.png(13, 7, depth=16, color=6, interlace=1), 4).any()


@pytest.mark.parametrize("level", [0, 9])
def test_rows_of_a_long_chunk_are_counted(level):
    rows = np.random.default_rng(0).integers(1, 256, (300, 1 + 300 * 3), "uint8")
    # The filter of each row is 0. The last row is black, so that Pillow would fill it in without an error.
    rows[:, 0] = rows[-1] = 0
    whole, short = (
        hostile_images.png(300, 300, data=hostile_images.chunk(b"IDAT", zlib.compress(part.tobytes(), level)))
        for part in (rows, rows[:-1])
    )
    np.testing.assert_array_equal(read_pixels(whole), rows[:, 1:].reshape(300, 300, 3))
    refuses("fewer rows", read_pixels, short)
