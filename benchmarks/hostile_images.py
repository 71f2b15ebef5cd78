"""Compares the times for small malicious image files with the times for the largest normal images.

Images are read in three ways: by `serving_bytes` of an exported model, by the pipelines of `keras_vit.data`, and by
`read_pixels`, which `classify` and reports use. All three are limited to 25 million pixels, the default of
`serving_bytes`. A file is marked if it takes more than 1.25 times as long as the slowest normal picture of its format.
Results go to results/hostile_images.json.

    python -m benchmarks.hostile_images
"""

import io
import json
import os
import pathlib
import re
import time
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from PIL import Image

import keras_vit
from keras_vit.console import text_table
from keras_vit.data import Crop
from keras_vit.export.signatures import STATUSES, ImageReader
from keras_vit.files import replacing
from keras_vit.images.files import read_pixels
from tests.hostile_images import by_pillow, chunk, gif, jpeg_scans, jpeg_sequential, long_parts, png, png_text, segment

SIDE, MAX_PIXELS = 5000, 25_000_000


def honest():
    """Returns {name: bytes} of pictures with as many pixels as permitted: photograph-like, and noise of 16 bits."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (SIDE // 16, SIDE // 16, 3), "uint8")).resize((SIDE, SIDE), 3)
    grain = rng.integers(-12, 13, (SIDE, SIDE, 1))
    photo = Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype("uint8"))
    found = {}
    for name, kind, options in (
        ("JPEG", "JPEG", {"quality": 92}),
        ("progressive JPEG", "JPEG", {"quality": 92, "progressive": True}),
        ("PNG", "PNG", {"compress_level": 1}),
        ("JPEG 2000", "JPEG2000", {}),
        ("GIF", "GIF", {}),
        ("WebP", "WEBP", {"quality": 92}),
        ("lossless WebP", "WEBP", {"lossless": True, "method": 0}),
        ("TIFF", "TIFF", {"compression": "tiff_deflate"}),
        ("BMP", "BMP", {}),
    ):
        file = io.BytesIO()
        photo.save(file, kind, **options)
        found[f"honest {name}"] = file.getvalue()
    noise = rng.integers(0, 65536, (SIDE, SIDE, 4), "uint16")
    found["honest PNG of 16 bits, RGBA"] = tf.io.encode_png(noise, compression=1).numpy()
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    parts = [noise[top::down, left::right] for top, left, down, right in passes]
    # In a PNG, a byte for the filter (0) comes before the pixels of each row.
    rows = [np.pad(part.astype(">u2").view("uint8").reshape(len(part), -1), ((0, 0), (1, 0))) for part in parts]
    data = chunk(b"IDAT", zlib.compress(b"".join(row.tobytes() for row in rows), 1))
    found["honest PNG of 16 bits, RGBA, interlaced"] = png(SIDE, SIDE, None, 16, 6, 1, data=data)
    return found


def pictures(side):
    """Returns {name: bytes} of files that ask for as much work as they can, most of `side` x `side` pixels."""
    exif, whole = segment(0xE1, b"Exif\0\0" + bytes(65_000)), jpeg_sequential(side, 1)
    return {
        "JPEG, 16 empty scans": jpeg_scans(side, 15),
        "JPEG, 3000 empty scans": jpeg_scans(side, 3000),
        "JPEG, 3000 empty scans behind comments": jpeg_scans(side, 3000, segment(0xFE, b"\xff\xd9")),
        "JPEG, 15 scans of color": jpeg_sequential(side, 5),
        "JPEG, 3000 scans of color": jpeg_sequential(side, 1000),
        "JPEG, 15 arithmetic scans": jpeg_sequential(side, 5, start=0xC9),
        "JPEG, 50 full EXIF segments": whole[:2] + exif * 50 + whole[2:],
        "JPEG, 250,000 comments": whole[:2] + segment(0xFE, b"") * 250_000 + whole[2:],
        "PNG": png(side, side),
        "PNG of 16 bits, RGBA": png(side, side, depth=16, color=6),
        "PNG of 16 bits, RGBA, interlaced": png(side, side, depth=16, color=6, interlace=1),
        "PNG of a row less": png(side, side, rows=side - 1),
        "PNG, one pixel wide": png(1, side * 3),
        "PNG, 8 texts of 8 MB": png_text(b"zTXt", 8),
        "PNG, 100 texts of 8 MB": png_text(b"zTXt", 100),
        "PNG, 100 profiles of 8 MB": png_text(b"iCCP", 100),
        "PNG, 80,000 chunks": png(8, 8, before=chunk(b"abCd", b"") * 80_000),
        "PNG, 80,000 empty data chunks": png(8, 8, data=chunk(b"IDAT", b"") * 80_000),
        "PNG of 16384 x 16384": png(16384, 16384, rows=1),
        "GIF": gif(1, (side, side), (side, side)),
        "GIF, 50 frames": gif(50, (side, side), (side, side)),
        "GIF, frame beyond its screen": gif(1, (8, 8), (8192, 8192)),
        "WebP": by_pillow(side, "WEBP", lossless=True),
        "WebP, 20 frames": by_pillow(side, "WEBP", frames=20),
        "TIFF": by_pillow(side, "TIFF", compression="tiff_deflate"),
        "JPEG 2000": by_pillow(side, "JPEG2000"),
        "BMP of no pixels": by_pillow(side, "BMP")[:54],
        **long_parts(),
    }


def entrances():
    """Returns {name: function that takes the bytes of a file and returns the outcome}."""
    reader = tf.function(ImageReader((224, 224), max_pixels=MAX_PIXELS), autograph=False)
    crops = {kind: Crop((224, 224), kind, max_pixels=MAX_PIXELS) for kind in ("eval", "pretrain")}
    graphs = {kind: tf.function(lambda x, c=c: c(x, (0, 1)), autograph=False) for kind, c in crops.items()}
    found = {"serving": lambda data: STATUSES[int(reader(tf.constant([data]))[1][0])]}
    found |= {f"pipeline, {kind}": lambda data, f=f: f(tf.constant(data)) is None for kind, f in graphs.items()}
    return found | {"read_pixels": lambda data: read_pixels(data, max_pixels=MAX_PIXELS) is None}


def picture_format(name):
    """Returns the format in a file's name, such as "JPEG 2000"."""
    return re.search("JPEG 2000|JPEG|PNG|GIF|WebP|TIFF|BMP", name).group()


def milliseconds(function, data):
    """Returns (milliseconds, the best of those within a few seconds, whether the file was decoded)."""
    times = []
    while sum(times) < 3 and len(times) < 3:
        start = time.perf_counter()
        try:
            decoded = function(data) in ("ok", False)
        except (ValueError, tf.errors.OpError):
            decoded = False
        times.append(time.perf_counter() - start)
    return min(times) * 1e3, decoded


def main():
    ways, rows = entrances(), []
    for function in ways.values():
        for data in pictures(16).values():
            milliseconds(function, data)
    for name, data in [*honest().items(), *pictures(SIDE).items()]:
        times = {way: milliseconds(function, data) for way, function in ways.items()}
        rows.append({"file": name, "bytes": len(data), **{way: list(found) for way, found in times.items()}})
    honest_rows = [row for row in rows if row["file"].startswith("honest")]
    cells = []
    for row in rows:
        same = [other for other in honest_rows if picture_format(other["file"]) == picture_format(row["file"])]
        slowest = {way: max(other[way][0] for other in same) for way in ways}
        marks = {way: " refused" * (not row[way][1]) + " SLOW" * (row[way][0] > 1.25 * slowest[way]) for way in ways}
        cells.append([row["file"], row["bytes"], *(f"{row[way][0]:,.0f}{marks[way]}" for way in ways)])
    print(text_table(["file", "bytes", *ways], cells))
    path = pathlib.Path(__file__).parent / "results" / "hostile_images.json"
    with replacing(path) as draft:
        content = {"keras_vit": keras_vit.__version__, "max_pixels": MAX_PIXELS, "milliseconds, decoded": rows}
        draft.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
