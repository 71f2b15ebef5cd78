"""Finds the parts of image files (chunks, segments, blocks and tags), and checks their lengths before decoding."""

import re

# The largest allowed number of parts in a file of n bytes is MAX_PARTS + n / 1,024.
MAX_PARTS = 2_000
JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
START, SCAN, END = 0xD8, 0xDA, 0xD9
# This pattern excludes restart markers (D0 to D7) and escaped bytes (00), because they are inside a scan's data.
_MARKER = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"II\0*", b"MM*\0")
# The number of bytes of a TIFF value. The index is the number of the value's type.
_TYPES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8)


def check_parts(data):
    """Raises if a PNG, JPEG, WebP, GIF or TIFF has a part that exceeds the end of the file, or too many parts."""
    most = MAX_PARTS + len(data) // 1024
    for number, (_, start, end) in enumerate(_parts(data), 1):
        if end > len(data):
            received = f"{end - start} bytes from byte {start} of {len(data)}"
            raise ValueError(f"expected parts that end within the file, received a part of {received}")
        if number > most:
            raise ValueError(f"expected at most {most} segments or chunks")


def _parts(data):
    """Yields (name, start, end) of each part of a file, in bytes."""
    if data.startswith(JPEG):
        return markers(data)
    if data.startswith(PNG[:8]):
        return chunks(data)
    if data.startswith(_TIFF):
        return _tags(data)
    if data.startswith(b"GIF8"):
        return _blocks(data)
    return _riff(data) if data.startswith(b"RIFF") else ()


def markers(jpeg):
    """Yields (marker, start, end) of each segment of a JPEG up to the end marker, without restart markers."""
    end = 2
    while (found := _MARKER.search(jpeg, end)) and found[1][0] != END:
        marker, start = found[1][0], found.end()
        long = marker >= 0xC0 and marker != START
        end = start + (max(2, _number(jpeg, start, 2)) if long else 0)
        yield marker, start, end


def chunks(png):
    """Yields (name, start, end) of each chunk of a PNG."""
    name, end = None, 4
    while end + 12 < len(png) and name != b"IEND":
        start = end + 12
        name, end = png[start - 4 : start], start + _number(png, start - 8, 4)
        yield name, start, end


def _riff(data):
    """Yields two parts of a WebP file: the RIFF container, which is the whole file, and the chunks inside it."""
    end = 8 + _number(data, 4, 4, "little")
    yield b"RIFF", 8, end
    last = at = 12
    while at + 8 <= end:
        last = at + 8 + _number(data, at + 4, 4, "little")
        at = last + last % 2
    yield b"WEBP", 12, last


def _blocks(gif):
    """Yields the blocks of a GIF up to its first frame."""
    at, kind = 13 + _palette(gif, 10), None
    while at < len(gif) and kind != b"," and (kind := gif[at : at + 1]) != b";":
        start = at
        at += {b",": 11 + _palette(gif, at + 9), b"!": 2}.get(kind, 1)
        while kind in b",!" and at < len(gif) and gif[at]:
            at += 1 + gif[at]
        yield kind, start, at
        at += kind in b",!"


def _palette(gif, at):
    """Returns the number of bytes of a GIF palette. The byte at position `at` contains the palette's flags."""
    flags = _number(gif, at, 1)
    return 3 * 2 ** (flags % 8 + 1) if flags & 0x80 else 0


def _tags(tiff):
    """Yields the first directory of a TIFF, the values of each tag, and a part with the total length of the values."""
    order = "little" if tiff.startswith(b"II") else "big"
    word, count, entry = (8, 8, 20) if b"+" in tiff[2:4] else (4, 2, 12)
    start = _number(tiff, word, word, order) + count
    end = start + entry * _number(tiff, start - count, count, order)
    yield None, start, end
    total = 0
    for at in range(start, end, entry):
        kind = _number(tiff, at + 2, 2, order)
        size = _number(tiff, at + 4, word, order) * (_TYPES[kind] if kind < len(_TYPES) else 0)
        if size > word:
            place = _number(tiff, at + 4 + word, word, order)
            total += size
            yield tiff[at : at + 2], place, place + size
    # Check the sum too, because many tags may refer to the same large values.
    yield None, 0, total


def _number(data, at, size, order="big"):
    return int.from_bytes(data[at : at + size], order)
