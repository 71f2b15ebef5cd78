"""Requests that a server must refuse, and images that are none."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

PNG = b"\x89PNG\r\n\x1a\n"


def pixels(seed, size=(20, 30, 3)):
    """A picture without noise, which JPEG keeps well."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    channels = [128 + 100 * np.sin(rows / (5 + seed % 7) + columns / (3 + i) + seed) for i in range(3)]
    return np.stack(channels, -1).astype("uint8")


def encoded(seed, kind="JPEG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels(seed)).save(file, kind, **options)
    return file.getvalue()


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, data=b"", depth=8, colour=2):
    """A PNG whose header says anything."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return PNG + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def png_bomb():
    """A true PNG of 20,000 x 20,000 grey pixels, 400 MB of them in 400 KB."""
    packer = zlib.compressobj(9)
    return png(
        20_000, 20_000, b"".join(packer.compress(bytes(20_001 * 100)) for _ in range(200)) + packer.flush(), 8, 0
    )


def huge_jpeg():
    """A JPEG whose header says 65,000 x 65,000, about the most that libjpeg takes."""
    data = bytearray(encoded(1))
    start = data.index(b"\xff\xc0")
    data[start + 5 : start + 9] = struct.pack(">HH", 65_000, 65_000)
    return bytes(data)


def strings(*values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


def bad_images():
    """Bytes by name, with the status that each gets."""
    good = encoded(1)
    return {
        "empty": (b"", "unknown_format"),
        "text": (b"no image at all", "unknown_format"),
        "zeros": (bytes(1000), "unknown_format"),
        "gif": (encoded(1, "GIF"), "unknown_format"),
        "bmp": (encoded(1, "BMP"), "unknown_format"),
        "webp_magic": (b"RIFF\0\0\0\0WEBPVP8 ", "unknown_format"),
        "jpeg_magic_alone": (good[:3], "damaged"),
        "jpeg_without_data": (good[:200], "damaged"),
        "jpeg_truncated": (good[: len(good) * 2 // 3], "damaged"),
        "jpeg_of_noise": (good[:20] + bytes(range(256)) * 4, "damaged"),
        "jpeg_huge": (huge_jpeg(), "too_large"),
        "png_magic_alone": (PNG, "unknown_format"),
        "png_header_cut": (png(5, 5)[:20], "damaged"),
        "png_without_data": (png(5, 5), "damaged"),
        "png_truncated": (encoded(1, "PNG")[:300], "damaged"),
        "png_huge": (png(2**31 - 1, 2**31 - 1), "too_large"),
        "png_negative": (png(2**32 - 1, 2**32 - 1), "too_large"),
        "png_wide": (png(1_000_000, 1), "too_large"),
        "png_of_no_size": (png(0, 0), "too_large"),
        "png_bomb": (png_bomb(), "too_large"),
    }


def bad_requests(shape=(16, 16, 3)):
    """(name, signature, input) of requests that get an error, for a model of one size."""
    good = np.zeros((1, *shape), "float32")
    shapes = {
        "scalar": (),
        "vector": shape[-1:],
        "no_batch": shape,
        "rank_5": (1, *shape, 1),
        "empty": (0, *shape),
        "too_many": (200, *shape),
        "no_height": (1, 0, *shape[1:]),
        "channels_first": (1, *shape[::-1]),
        "one_channel": (1, *shape[:2], 1),
        "other_size": (1, shape[0] + 1, *shape[1:]),
    }
    for name, value in shapes.items():
        yield name, "serving_default", {"images": np.zeros(value, "float32")}
        yield name, "serving_uint8", {"images": np.zeros(value, "uint8")}
    for dtype in ("float64", "int32", "int64", "uint8"):
        yield dtype, "serving_default", {"images": good.astype(dtype)}
    for dtype in ("float32", "int32"):
        yield dtype, "serving_uint8", {"images": good.astype(dtype)}
    yield "strings", "serving_default", {"images": np.full(good.shape, b"1", object)}
    # In float32 JSON's 1e39 is infinite.
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
