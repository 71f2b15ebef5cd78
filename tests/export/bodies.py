"""Requests that a server must refuse, and damaged images."""

import io
import struct

import numpy as np
from PIL import Image

from tests.hostile_images import chunk, png


def pixels(seed, size=(20, 30, 3)):
    """Returns a picture without noise, which JPEG stores with small errors."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    channels = [128 + 100 * np.sin(rows / (5 + seed % 7) + columns / (3 + i) + seed) for i in range(3)]
    return np.stack(channels, -1).astype("uint8")


def encoded(seed, kind="JPEG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels(seed)).save(file, kind, **options)
    return file.getvalue()


def huge_jpeg():
    """Returns a JPEG whose header gives 65,000 x 65,000 pixels, near the limit of libjpeg."""
    data = bytearray(encoded(1))
    start = data.index(b"\xff\xc0")
    data[start + 5 : start + 9] = struct.pack(">HH", 65_000, 65_000)
    return bytes(data)


def strings(*values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


def bad_images():
    """Returns {name: (bytes, expected status)}."""
    good, empty = encoded(1), {"data": chunk(b"IDAT", b"")}
    return {
        "empty": (b"", "unknown_format"),
        "text": (b"no image at all", "unknown_format"),
        "gif": (encoded(1, "GIF"), "unknown_format"),
        "webp_magic": (b"RIFF\0\0\0\0WEBPVP8 ", "unknown_format"),
        "jpeg_magic_alone": (good[:3], "damaged"),
        "jpeg_without_data": (good[:200], "damaged"),
        "jpeg_truncated": (good[: len(good) * 2 // 3], "damaged"),
        "jpeg_of_noise": (good[:20] + bytes(range(256)) * 4, "damaged"),
        "jpeg_huge": (huge_jpeg(), "too_large"),
        "png_magic_alone": (encoded(1, "PNG")[:8], "unknown_format"),
        "png_header_cut": (png(5, 5)[:20], "damaged"),
        "png_without_data": (png(5, 5, **empty), "damaged"),
        "png_truncated": (encoded(1, "PNG")[:300], "damaged"),
        "png_huge": (png(2**31 - 1, 2**31 - 1, **empty), "too_large"),
        "png_wide": (png(1_000_000, 1, **empty), "too_large"),
        "png_of_no_size": (png(0, 0, **empty), "too_large"),
        # A valid file of 400 MB of gray pixels in 400 KB.
        "png_bomb": (png(20_000, 20_000, color=0), "too_large"),
    }


def bad_requests(shape=(16, 16, 3)):
    """Yields (name, signature, inputs) of requests that a model of one size refuses."""
    good = np.zeros((1, *shape), "float32")
    shapes = {"scalar": (), "vector": shape[-1:], "no_batch": shape, "rank_5": (1, *shape, 1), "empty": (0, *shape)}
    shapes |= {"too_many": (200, *shape), "no_height": (1, 0, *shape[1:]), "channels_first": (1, *shape[::-1])}
    shapes |= {"one_channel": (1, *shape[:2], 1), "other_size": (1, shape[0] + 1, *shape[1:])}
    for name, value in shapes.items():
        yield name, "serving_default", {"images": np.zeros(value, "float32")}
        yield name, "serving_uint8", {"images": np.zeros(value, "uint8")}
    for dtype in ("float64", "int32", "int64", "uint8"):
        yield dtype, "serving_default", {"images": good.astype(dtype)}
    for dtype in ("float32", "int32"):
        yield dtype, "serving_uint8", {"images": good.astype(dtype)}
    yield "strings", "serving_default", {"images": np.full(good.shape, b"1", object)}
    for value in (np.nan, np.inf, -np.inf):
        image = good.copy()
        image[0, 0, 0, 0] = value
        yield f"{value}", "serving_default", {"images": image}
        yield f"only {value}", "serving_default", {"images": np.full_like(good, value)}
    yield "no_bytes", "serving_bytes", {"image_bytes": strings()}
    yield "scalar_bytes", "serving_bytes", {"image_bytes": np.array(encoded(1), object)}
    yield "matrix_of_bytes", "serving_bytes", {"image_bytes": strings(encoded(1)).reshape(1, 1)}
    yield "too_many_bytes", "serving_bytes", {"image_bytes": strings(*[b""] * 200)}
    yield "numbers_as_bytes", "serving_bytes", {"image_bytes": np.zeros(2, "float32")}
