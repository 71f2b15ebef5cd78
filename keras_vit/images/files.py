"""Reads image files. Refuses files whose decoding would need too much work.

A small file can cause seconds of work: a PNG of 62 KB may decode to a gigabyte, and a decoder computes all blocks of a
JPEG again for each scan. This module limits pixels, sides and scans, both for Pillow and for TensorFlow.
"""

import io
import os
import re
import zlib
from pathlib import Path

import numpy as np

from keras_vit.files import regular_file
from keras_vit.images.parts import END, JPEG, MAX_PARTS, PNG, SCAN, START, check_parts, chunks, markers

# The product of a JPEG's pixels and scans is at most MAX_SCANS * `max_pixels`, so smaller images may have more scans.
# Encoders write about 10 scans.
MAX_SCANS = 16
# The largest allowed number of compressed texts in a PNG. Each text may decompress to 8 MB.
MAX_TEXTS = 8
# The number of bytes of a PNG that are decompressed in one call.
PIECE = 1 << 16
# The largest allowed side. Resizing needs memory for output height x input width, so a limit on pixels is not enough.
MAX_SIDE = 65_535
# These formats are refused. Pillow runs Ghostscript for EPS. A BLP may contain a JPEG, and the limit on JPEG scans
# would not apply to it. Pillow identifies BUFR, GRIB, HDF5 and MPEG, but cannot read them.
NOT_READ = ("EPS", "BLP", "BUFR", "GRIB", "HDF5", "MPEG")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")
_GREY = (0.299, 0.587, 0.114)
# Only this many bytes of an EXIF block are read. A block begins with one of the byte orders in `_ORDERS`.
EXIF_BYTES = 1 << 16
_ORDERS = {b"II*\0": "little", b"MM\0*": "big"}
ORIENTATION = 0x0112  # The EXIF tag of the orientation.
# The EXIF orientations for which rows are reversed, and those for which columns are reversed. Images with the
# orientations 5 to 8 are transposed first.
_FLIPPED, _MIRRORED = (3, 4, 7, 8), (2, 3, 6, 7)


def visible_files(folder: Path, above: tuple = ()) -> list[Path]:
    """Returns the sorted visible files below a folder, or []; follows links, but not to the folders `above`."""
    files, real = [], folder.resolve()
    for path in folder.iterdir() if folder.is_dir() and real not in above else ():
        if not path.name.startswith("."):
            files += visible_files(path, (*above, real)) if path.is_dir() else [path] * path.is_file()
    return sorted(files, key=str)


def read_pixels(file: str | os.PathLike | bytes, channels: int = 3, max_pixels: int = 178_956_970) -> np.ndarray:
    """Reads a whole image with Pillow as uint8, turned upright, and on white unless `channels` is 4.

    `file` is a path or bytes. If it is not readable or exceeds a limit, a ValueError is raised. `decode_image`
    returns the same pixels, except for color images of 16 bits, of which Pillow reads only the upper 8
    bits. A gray image of 16 bits whose values are all below 4,096 is read as an image of 12 bits.
    """
    if channels not in _MODES:
        raise ValueError(f"Expected images of 1, 3 or 4 channels. Received: {channels} channels")
    of_bytes = isinstance(file, bytes)
    name = f"{len(file)} bytes" if of_bytes else os.fspath(file)
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("Reading images needs Pillow: pip install pillow") from error
    data = file if of_bytes else Path(regular_file(file, "an image file")).read_bytes()
    try:
        check_parts(data)
        Image.init()
        with Image.open(io.BytesIO(data), formats=[kind for kind in Image.OPEN if kind not in NOT_READ]) as image:
            _check_work(data, image.size, max_pixels)
            image.load()
            if image.format == "PNG":
                _check_rows(data, image)
            kind = image.format
            if not data.startswith((JPEG, PNG[:8])):
                image = ImageOps.exif_transpose(image)
            if image.mode.startswith("I"):
                values = np.asarray(image)
                if image.mode != "I" or kind in ("PNG", "PPM"):
                    # Pillow scales the values of PPM files to 16 bits, so these images never have 12 bits.
                    values = values >> (4 if values.max() < 4096 and kind != "PPM" else 8)
                elif values.min() < 0 or values.max() > 255:
                    received = f"integers from {values.min()} to {values.max()}"
                    raise ValueError(f"expected pixels of 8 bits or unsigned 16 bits, received {received}")
                image = Image.fromarray(values.astype("uint8"))
            if image.mode == "F":
                raise ValueError("expected pixels of 8 or 16 bits, received floating-point numbers of unknown range")
            if channels != 4 and (image.mode in _TRANSPARENT or "transparency" in image.info):
                image = Image.fromarray(_on_white(np.asarray(image.convert("RGBA")).astype("int32"), np))
            if data.startswith((JPEG, PNG[:8])):
                return upright(
                    np.array(image.convert(_MODES[channels])).reshape(*image.size[::-1], channels), _turn(data)
                )
            image = image.convert(_MODES[channels])
            return np.array(image).reshape(*image.size[::-1], channels)
    except MemoryError:
        raise
    # Catch all errors, because Pillow raises different ones for each format and kind of damage.
    except Exception as error:
        # If the image is bytes, Pillow's message contains the address of a buffer, so remove this address.
        reason = re.sub(r" <_io.*?>", "", str(error))
        raise ValueError(f"Cannot read {name!r}. It is damaged, or Pillow does not support it ({reason}).") from error


def _check_work(data, size, max_pixels):
    """Raises if an image of `size`, (width, height), is too large, or is a JPEG with too many scans."""
    pixels = size[0] * size[1]
    if pixels > max_pixels or max(size) > MAX_SIDE:
        raise ValueError(f"expected at most {max_pixels} pixels, and {MAX_SIDE} a side, received {size[0]} x {size[1]}")
    if data.startswith(JPEG) and (scans := num_scans(data)) * pixels > MAX_SCANS * max_pixels:
        raise ValueError(f"expected at most {MAX_SCANS * max_pixels // pixels} scans for its size, received {scans}")


def num_scans(jpeg):
    """Returns the number of scans of a JPEG, without the scans of thumbnails and of images after the JPEG."""
    return sum(marker == SCAN for marker, _, _ in markers(jpeg))


def _check_rows(data, image):
    """Raises if a PNG has fewer rows than its header requires. Pillow would set the missing rows to zero."""
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
    for name, start, end in chunks(data):
        # Decompress small pieces, because each call copies the rest of its input.
        for position in range(start, end if name == b"IDAT" else start, PIECE):
            packed = data[position : min(position + PIECE, end)]
            while packed and missing > 0:
                missing -= len(unpacker.decompress(packed, 2 * PIECE))
                packed = unpacker.unconsumed_tail
    if missing > 0:
        raise ValueError("the file has fewer rows than its header requires")


def jpeg_header(encoded, max_pixels, max_side=MAX_SIDE):
    """Returns two tensors: a JPEG's (height, width), and True if its size and number of scans are within the limits."""
    import tensorflow as tf

    size = tf.cast(tf.image.extract_jpeg_shape(encoded)[:2], "int64")
    most = MAX_SCANS * max_pixels // tf.maximum(tf.reduce_prod(size), 1)
    # First count how often the bytes of the scan marker occur. Thumbnails and data after the image may also contain
    # these bytes. If the count exceeds the limit, count the scans segment by segment, which is slower.
    few = _count(encoded, b"\xff\xda") <= most
    return size, _fits(size, max_pixels, max_side) & tf.cond(few, lambda: True, lambda: _scans(encoded, most) <= most)


def png_header(encoded, max_pixels, max_side=MAX_SIDE):
    """Returns two tensors: a PNG's (height, width), and True if its size and number of texts are within the limits."""
    import tensorflow as tf

    # Unsigned sizes of 2**31 and more are read as negative numbers, which `_fits` refuses.
    sides = tf.io.decode_raw(tf.strings.substr(encoded, len(PNG), 8), "int32", little_endian=False)
    size = tf.cast(tf.ensure_shape(sides, (2,))[::-1], "int64")
    return size, _fits(size, max_pixels, max_side) & (_texts(encoded) <= MAX_TEXTS)


def _texts(encoded):
    """Counts the compressed texts of a PNG; fails if a chunk is truncated, or if there are too many chunks."""
    import tensorflow as tf

    size = tf.strings.length(encoded)
    last, *texts = (int.from_bytes(name, "big") for name in (b"IEND", b"zTXt", b"iTXt"))

    def going_on(start, found):
        return (start <= tf.cast(size - 12, "int64")) & (found <= MAX_TEXTS)

    def step(start, found):
        head = tf.strings.substr(encoded, tf.cast(start, "int32"), 8)
        length, name = tf.unstack(tf.cast(tf.io.decode_raw(head, "int32", little_endian=False), "int64"), num=2)
        # The length is unsigned, but was read as a signed number. The last chunk may lack its checksum of 4 bytes.
        end = start + 8 + length % (1 << 32)
        end = tf.where((name == last) & (end <= tf.cast(size, "int64")), tf.cast(size, "int64"), end)
        return end + 4, found + tf.cast(tf.reduce_any(name == texts), "int64")

    begin, most = (tf.constant(8, "int64"), tf.constant(0, "int64")), MAX_PARTS + size // 1024
    start, found = tf.while_loop(going_on, step, begin, parallel_iterations=1, maximum_iterations=most)
    whole = ~going_on(start, found) & (start - 4 <= tf.cast(size, "int64"))
    message = f"Expected a PNG with at most {MAX_PARTS} + bytes / 1,024 chunks, which all end within the file"
    with tf.control_dependencies([tf.raw_ops.Assert(condition=whole, data=[message])]):
        return tf.identity(found)


def _fits(size, max_pixels, max_side):
    import tensorflow as tf

    return tf.reduce_all((size > 0) & (size <= max_side)) & (tf.reduce_prod(size) <= max_pixels)


def _count(encoded, part):
    import tensorflow as tf

    return tf.size(tf.raw_ops.StringSplitV2(input=encoded[None], sep=part).values, tf.int64) - 1


def _scans(encoded, most):
    """Does the same as `num_scans` in TensorFlow. If there are too many segments, returns `most + 1`."""
    import tensorflow as tf

    # Append an end marker, so that the loop below always ends.
    data = tf.cast(tf.io.decode_raw(encoded + b"\xff\xd9\0\0", "uint8"), "int64")
    follows = data[1:-2]
    marks = tf.where((data[:-3] == 255) & (follows > 0) & (follows < 255) & ((follows < 0xD0) | (follows > 0xD7)))[:, 0]

    def marker(position):
        # Limit the index, because the length of a segment may exceed the data.
        return tf.gather(marks, tf.minimum(tf.searchsorted(marks, position[None])[0], tf.size(marks) - 1))

    def going_on(place, scans):
        return (data[place + 1] != END) & (scans <= most)

    def step(place, scans):
        kind = data[place + 1]
        length = tf.maximum(256 * data[place + 2] + data[place + 3], 2)
        length = tf.where((kind >= 0xC0) & (kind != START), length, 0)
        return marker(place + 2 + length), scans + tf.cast(kind == SCAN, "int64")

    start = (marker(tf.constant(2, "int64")), tf.constant(0, "int64"))
    place, scans = tf.while_loop(going_on, step, start, parallel_iterations=1, maximum_iterations=MAX_PARTS)
    return tf.where(data[place + 1] == END, scans, most + 1)


def decode_image(encoded, channels):
    """Decodes a JPEG or PNG in TensorFlow to uint8 with 1 (grayscale) or 3 channels, as `read_pixels` does."""
    import tensorflow as tf

    is_jpeg = starts_with(encoded, JPEG)
    image = tf.cond(is_jpeg, lambda: decode_jpeg(encoded, channels), lambda: decode_png(encoded, channels))
    return upright_in_tensorflow(image, encoded)


def starts_with(encoded, magic):
    """Returns True, as a tensor, if `encoded` begins with the bytes `magic`."""
    import tensorflow as tf

    # If a file is shorter than the magic bytes, substr returns the whole file.
    return tf.strings.substr(encoded, 0, len(magic)) == magic


def decode_jpeg(encoded, channels):
    """Decodes a JPEG as `decode_image` does, but does not turn it upright."""
    import tensorflow as tf

    # Use the accurate cosine transform of libjpeg, as Pillow does.
    return to_channels(tf.io.decode_jpeg(encoded, 3, dct_method="INTEGER_ACCURATE"), channels)


def decode_png(encoded, channels):
    """Decodes a PNG as `decode_image` does, also to 4 channels, but does not turn it upright."""
    import tensorflow as tf

    depth, kind = tf.unstack(tf.io.decode_raw(tf.strings.substr(encoded, 24, 2), "uint8"), 2)

    def opaque(image):
        # Do not let tf.io.decode_png add alpha, because it would be 1 for images of 1 bit, and 15 for images of 4 bits.
        return tf.pad(image, [[0, 0], [0, 0], [0, 1]], constant_values=255) if channels == 4 else image

    def deep_gray():
        values = tf.io.decode_png(encoded, 1, "uint16")
        values = tf.cast(values, "int32") // tf.where(tf.reduce_max(values) < 4096, 16, 256)
        return opaque(tf.repeat(tf.cast(values, "uint8"), 3, axis=-1))

    def with_alpha():
        image = tf.io.decode_png(encoded, 4)
        return image if channels == 4 else tf.cast(_on_white(tf.cast(image, "int32"), tf), "uint8")

    transparent = (kind >= 4) | (_count(encoded, b"tRNS") > 0)
    cases = [((depth == 16) & (kind == 0), deep_gray), (transparent, with_alpha)]
    image = tf.case(cases, lambda: opaque(tf.io.decode_png(encoded, 3)))
    return to_channels(tf.ensure_shape(image, (None, None, max(channels, 3))), channels)


def to_channels(image, channels):
    """Converts RGB to grayscale if `channels` is 1. Weighs the colors as Pillow does, unlike libpng and libjpeg."""
    import tensorflow as tf

    if channels != 1:
        return image
    grey = tf.tensordot(tf.cast(image, "float32"), tf.constant([[part] for part in _GREY]), 1)
    return tf.cast(tf.round(grey), "uint8")


def _on_white(image, xp):
    """Composites int32 RGBA pixels on white."""
    color, alpha = image[..., :3], image[..., 3:]
    mixed = (color * alpha + 255 * (255 - alpha) + 127) // 255
    return mixed.astype("uint8") if xp is np else mixed


def _turn(data):
    """Returns the EXIF orientation of a JPEG or PNG, 1 to 8, from the bytes of the file; 1 if there is none."""
    magic = b"Exif\0\0" if data.startswith(JPEG) else b"eXIf"
    before, _, block = data.partition(magic)
    # Ignore EXIF data after the first scan, because it belongs to another image in the file.
    order = None if magic != b"eXIf" and b"\xff\xda" in before else _ORDERS.get(block[:4])
    if order is None:
        return 1
    block = block[:EXIF_BYTES]
    first = int.from_bytes(block[4:8], order)
    for at in range(
        first + 2, min(len(block) - 11, first + 2 + 12 * int.from_bytes(block[first : first + 2], order)), 12
    ):
        if int.from_bytes(block[at : at + 2], order) == ORIENTATION:
            turn = int.from_bytes(block[at + 8 : at + 10], order)
            return turn if 1 <= turn <= 8 else 1
    return 1


def _turn_in_tensorflow(encoded):
    """Does the same as `_turn` in TensorFlow."""
    import tensorflow as tf

    is_jpeg = starts_with(encoded, JPEG)
    magic = tf.where(is_jpeg, b"Exif\0\0", b"eXIf")
    parts = tf.raw_ops.StringSplitV2(input=tf.reshape(encoded, [1]), sep=magic, maxsplit=1).values
    block = tf.strings.substr(tf.concat([parts, [""]], 0)[1], 0, EXIF_BYTES)
    start, length = tf.strings.substr(block, 0, 4), tf.strings.length(block)
    data = tf.cast(tf.io.decode_raw(block + bytes(16), "uint8"), "int32")

    def number(at, size):
        at = tf.clip_by_value(at, 0, tf.size(data) - size)
        weights = np.array([1 << 8 * i for i in range(size)], "int32")
        octets = tf.gather(data, tf.expand_dims(at, -1) + np.arange(size, dtype="int32"))
        return tf.reduce_sum(octets * tf.where(start == b"II*\0", weights, weights[::-1]), -1)

    first = number(4, 4)
    places = tf.range(tf.minimum(number(first, 2), length // 12)) * 12 + tf.clip_by_value(first, 0, EXIF_BYTES) + 2
    tags, turns = tf.unstack(number(tf.stack([places, places + 8]), 2))
    tagged = (tags == ORIENTATION) & (places + 12 <= length)
    turn = tf.reduce_sum(tf.boolean_mask(turns, tagged)[:1])
    own = ~(is_jpeg & (_count(parts[0], b"\xff\xda") > 0))
    known = own & tf.reduce_any(start == [*_ORDERS]) & (first >= 0) & (turn >= 1) & (turn <= 8)
    return tf.where(known, turn, 1)


def upright(image, turn):
    """Turns an array, (height, width, channels), upright by `turn`, the EXIF orientation."""
    image = image.transpose(1, 0, 2) if turn >= 5 else image
    image = image[:, ::-1] if turn in _MIRRORED else image
    return np.ascontiguousarray(image[::-1] if turn in _FLIPPED else image)


def upright_in_tensorflow(image, encoded):
    """Does the same as `upright`. Reads the orientation from the EXIF block of `encoded`, a JPEG or PNG."""
    import tensorflow as tf

    turn = _turn_in_tensorflow(encoded)

    def turned():
        turned = tf.cond(turn >= 5, lambda: tf.transpose(image, (1, 0, 2)), lambda: image)
        axes = (tf.reduce_any(turn == kinds) for kinds in (_FLIPPED, _MIRRORED))
        for axis, reverse in enumerate(axes):
            turned = tf.cond(reverse, lambda x=turned, axis=axis: tf.reverse(x, [axis]), lambda x=turned: x)
        return turned

    return tf.ensure_shape(tf.cond(turn > 1, turned, lambda: image), (None, None, image.shape[-1]))
