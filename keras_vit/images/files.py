"""Reads image files, with checks that bound the work before an image is decoded.

A few bytes can ask for seconds of work: a PNG of 62 KB decodes to a gigabyte, and each scan of a JPEG visits all its
blocks again. Pixels, sides and scans are limited here, for Pillow and TensorFlow alike.
"""

import io
import itertools
import os
import re
import zlib

import numpy as np

from keras_vit.files import absent

# A JPEG may have more scans if it has fewer pixels: pixels x scans are at most MAX_SCANS x `max_pixels`. Encoders write
# about 10.
MAX_SCANS = 16
# Compressed texts of a PNG: each may decompress to 8 MB.
MAX_TEXTS = 8
# Bytes of a PNG that are decompressed in one call.
PIECE = 1 << 16
# Resizing needs memory for output height x input width, so a limit on pixels is not enough.
MAX_SIDE = 65_535
# Segments of a JPEG that TensorFlow visits to count scans.
MAX_SEGMENTS = 2_000
JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
# EPS runs Ghostscript; BLP may hold a JPEG whose scans are not counted; Pillow cannot read the others.
NOT_READ = ("EPS", "BLP", "BUFR", "GRIB", "HDF5")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_GREY = (0.299, 0.587, 0.114)
_START, _SCAN, _END = 0xD8, 0xDA, 0xD9
# Neither restarts (D0 to D7) nor escaped bytes, which are part of a scan's data.
_MARKER = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")


def read_pixels(file: str | os.PathLike | bytes, channels: int = 3, max_pixels: int = 178_956_970) -> np.ndarray:
    """Reads a whole image with Pillow, as uint8 (height, width, channels).

    Args:
        file: Path of an image file in any format that Pillow reads, except EPS and BLP, or its bytes.
        channels: 1 (grayscale), 3 (RGB) or 4 (RGBA), regardless of the file.
        max_pixels: Integer, the largest height x width; the default is Pillow's own limit. A side is at most 65,535
            pixels, and a JPEG has at most `16 * max_pixels / (height * width)` scans.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a readable image, if it exceeds a limit, or if `channels` is not 1, 3 or 4.
        ImportError: If Pillow is not installed.

    Example:

    >>> read_pixels("cat.jpg").shape  # doctest: +SKIP
    (375, 500, 3)
    """
    if channels not in _MODES:
        raise ValueError(f"Expected images of 1, 3 or 4 channels. Received: {channels} channels")
    of_bytes = isinstance(file, bytes)
    name = f"{len(file)} bytes" if of_bytes else os.fspath(file)
    if not of_bytes and not os.path.isfile(file):
        received = f"{name!r}, which is a folder" if os.path.isdir(file) else absent(file)
        raise FileNotFoundError(f"Expected an image file. Received: {received}")
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("Reading images needs Pillow: pip install pillow") from error
    if of_bytes:
        data = file
    else:
        with open(file, "rb") as opened:
            data = opened.read()
    try:
        _check_parts(data)
        Image.init()
        with Image.open(io.BytesIO(data), formats=[kind for kind in Image.OPEN if kind not in NOT_READ]) as image:
            _check_work(data, image.size, max_pixels)
            image.load()
            if image.format == "PNG":
                _check_rows(data, image)
            if image.mode.startswith("I"):
                values = np.asarray(image)
                if image.mode != "I" or image.format in ("PNG", "PPM"):
                    # 16 bits per pixel: the upper byte, as TensorFlow decodes them.
                    values = values >> 8
                elif values.min() < 0 or values.max() > 255:
                    received = f"integers from {values.min()} to {values.max()}"
                    raise ValueError(f"expected pixels of 8 bits, or 16 without a sign, received {received}")
                image = Image.fromarray(values.astype("uint8"))
            if image.mode == "F":
                raise ValueError("expected pixels of 8 or 16 bits, received floating-point numbers of unknown range")
            return np.array(image.convert(_MODES[channels])).reshape(*image.size[::-1], channels)
    except MemoryError:
        raise
    # Pillow's errors differ by format and damage.
    except Exception as error:
        # For bytes, Pillow's message has the address of a buffer.
        reason = re.sub(r" <_io.*?>", "", str(error))
        raise ValueError(f"Cannot read {name!r}: it is no image that Pillow knows, or damaged ({reason}).") from error


def _check_parts(data):
    """Raises if a JPEG or PNG has so many small segments or chunks that Pillow would take seconds for them."""
    parts = _markers(data) if data.startswith(JPEG) else _chunks(data) if data.startswith(PNG[:8]) else ()
    most = MAX_SEGMENTS + len(data) // 1024
    if any(True for _ in itertools.islice(parts, most, None)):
        raise ValueError(f"expected at most {most} segments or chunks")


def _check_work(data, size, max_pixels):
    """Raises if an image of (width, height) `size` is too large, or a JPEG of too many scans."""
    pixels = size[0] * size[1]
    if pixels > max_pixels or max(size) > MAX_SIDE:
        raise ValueError(f"expected at most {max_pixels} pixels, {MAX_SIDE} a side, received {size[0]} x {size[1]}")
    if data.startswith(JPEG) and (scans := num_scans(data)) * pixels > MAX_SCANS * max_pixels:
        raise ValueError(f"expected at most {MAX_SCANS * max_pixels // pixels} scans of its size, received {scans}")


def num_scans(jpeg):
    """Returns the number of scans of a JPEG, without those of pictures inside its segments or after its end."""
    return sum(marker == _SCAN for marker in _markers(jpeg))


def _markers(jpeg):
    """Yields the markers of a JPEG up to its end, without those of restarts."""
    position = 2
    while (found := _MARKER.search(jpeg, position)) and found[1][0] != _END:
        marker, position = found[1][0], found.end()
        if marker >= 0xC0 and marker != _START:
            position += max(2, int.from_bytes(jpeg[position : position + 2], "big"))
        yield marker


def _chunks(png):
    """Yields the name, start and end of each chunk of a PNG."""
    end = 4
    while end + 12 < len(png):
        start = end + 12
        end = start + int.from_bytes(png[start - 8 : start - 4], "big")
        yield png[start - 4 : start], start, end


def _check_rows(data, image):
    """Raises if a PNG has fewer rows than its header says, which Pillow leaves at zero."""
    interlaced = data[28]
    if not interlaced and np.asarray(image.crop((0, image.height - 1, image.width, image.height))).any():
        return
    bits = data[24] * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[data[25]]
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    missing = 0
    for left, top, across, down in passes:
        width, height = -(-(image.width - left) // across), -(-(image.height - top) // down)
        missing += height * (1 + -(-width * bits // 8)) if width > 0 and height > 0 else 0
    unpacker = zlib.decompressobj()
    for name, start, end in _chunks(data):
        # In pieces, as each call copies what is left of its piece.
        for position in range(start, end if name == b"IDAT" else start, PIECE):
            packed = data[position : min(position + PIECE, end)]
            while packed and missing > 0:
                missing -= len(unpacker.decompress(packed, 2 * PIECE))
                packed = unpacker.unconsumed_tail
    if missing > 0:
        raise ValueError("it has fewer rows than its header says")


def jpeg_header(encoded, max_pixels, max_side=MAX_SIDE):
    """Returns a JPEG's (height, width), a TensorFlow tensor, and whether its size and scans are within the limits."""
    import tensorflow as tf

    size = tf.cast(tf.image.extract_jpeg_shape(encoded)[:2], "int64")
    most = MAX_SCANS * max_pixels // tf.maximum(tf.reduce_prod(size), 1)
    # Thumbnails and what follows the image may hold the marker too: then the segments are visited, which takes longer.
    few = _count(encoded, b"\xff\xda") <= most
    return size, _fits(size, max_pixels, max_side) & tf.cond(few, lambda: True, lambda: _scans(encoded, most) <= most)


def png_header(encoded, max_pixels, max_side=MAX_SIDE):
    """Returns a PNG's (height, width), a TensorFlow tensor, and whether its size and texts are within the limits."""
    import tensorflow as tf

    # Unsigned sizes of 2**31 and more become negative and are rejected too.
    sides = tf.io.decode_raw(tf.strings.substr(encoded, len(PNG), 8), "int32", little_endian=False)
    size = tf.cast(tf.ensure_shape(sides, (2,))[::-1], "int64")
    texts = _count(encoded, b"zTXt") + _count(encoded, b"iTXt")
    return size, _fits(size, max_pixels, max_side) & (texts <= MAX_TEXTS)


def _fits(size, max_pixels, max_side):
    import tensorflow as tf

    return tf.reduce_all((size > 0) & (size <= max_side)) & (tf.reduce_prod(size) <= max_pixels)


def _count(encoded, part):
    import tensorflow as tf

    return tf.size(tf.raw_ops.StringSplitV2(input=encoded[None], sep=part).values, tf.int64) - 1


def _scans(encoded, most):
    """`num_scans` in TensorFlow; returns more than `most` for a JPEG of too many segments."""
    import tensorflow as tf

    # Ends in an end marker.
    data = tf.cast(tf.io.decode_raw(encoded + b"\xff\xd9\0\0", "uint8"), "int64")
    follows = data[1:-2]
    marks = tf.where((data[:-3] == 255) & (follows > 0) & (follows < 255) & ((follows < 0xD0) | (follows > 0xD7)))[:, 0]

    def marker(position):
        # A segment may reach beyond the end.
        return tf.gather(marks, tf.minimum(tf.searchsorted(marks, position[None])[0], tf.size(marks) - 1))

    def going_on(place, scans):
        return (data[place + 1] != _END) & (scans <= most)

    def step(place, scans):
        kind = data[place + 1]
        length = tf.maximum(256 * data[place + 2] + data[place + 3], 2)
        length = tf.where((kind >= 0xC0) & (kind != _START), length, 0)
        return marker(place + 2 + length), scans + tf.cast(kind == _SCAN, "int64")

    start = (marker(tf.constant(2, "int64")), tf.constant(0, "int64"))
    place, scans = tf.while_loop(going_on, step, start, parallel_iterations=1, maximum_iterations=MAX_SEGMENTS)
    return tf.where(data[place + 1] == _END, scans, most + 1)


def decode_jpeg(encoded, channels):
    """Decodes a JPEG in TensorFlow to uint8 with 1 (grayscale) or 3 channels, as Pillow does."""
    import tensorflow as tf

    # Pillow uses libjpeg's accurate transform.
    return to_channels(tf.io.decode_jpeg(encoded, 3, dct_method="INTEGER_ACCURATE"), channels)


def decode_png(encoded, channels):
    """Decodes a PNG in TensorFlow to uint8 with 1 (grayscale) or 3 channels, as Pillow does."""
    import tensorflow as tf

    return to_channels(tf.io.decode_png(encoded, 3), channels)


def to_channels(image, channels):
    """Converts RGB to grayscale if `channels` is 1, as Pillow does; libpng and libjpeg differ."""
    import tensorflow as tf

    if channels != 1:
        return image
    grey = tf.tensordot(tf.cast(image, "float32"), tf.constant([[part] for part in _GREY]), 1)
    return tf.cast(tf.round(grey), "uint8")
