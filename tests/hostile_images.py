"""Makers of small image files that are costly to decode, each as bytes."""

import io
import struct
import zlib

from PIL import Image

CHUNKS = (
    *(b"tEXt", b"zTXt", b"iTXt", b"iCCP", b"eXIf", b"PLTE", b"tRNS", b"sPLT", b"pCAL", b"sCAL", b"hIST", b"abCd"),
    *(b"IDAT", b"IEND"),
)


def segment(marker, data):
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def jpeg_scans(side, scans, between=b""):
    """A progressive gray JPEG of empty scans: some 40 bytes and side * side / 64 blocks of work each."""
    out = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([1] * 64))
    out += segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\x01\x11\x00")
    # Codes of one bit: a DC difference of 0, and an end-of-band run with 14 bits more.
    codes = bytes([1] + [0] * 15)
    out += segment(0xC4, b"\x00" + codes + b"\x00") + segment(0xC4, b"\x10" + codes + b"\xe0")
    blocks = (-(-side // 8)) ** 2
    out += segment(0xDA, b"\x01\x01\x00\x00\x00\x00") + bytes(-(-blocks // 8))
    bits = ""
    while blocks > 0:
        run = min(blocks, 32767)
        bits += "0" + format(max(run - 16384, 0), "014b")
        blocks -= max(run, 16384)
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")
    return out + (between + segment(0xDA, b"\x01\x01\x00\x01\x3f\x00") + data) * scans + b"\xff\xd9"


def jpeg_sequential(side, scans, start=0xC0, components=3):
    """A baseline (or, with `start` 0xC9, arithmetic) JPEG that repeats scans without data."""
    out = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([1] * 64))
    frame = b"".join(bytes([i + 1, 0x11, 0]) for i in range(components))
    out += segment(start, struct.pack(">BHHB", 8, side, side, components) + frame)
    codes = bytes([1] + [0] * 15)
    if start == 0xC0:
        out += segment(0xC4, b"\x00" + codes + b"\x00") + segment(0xC4, b"\x10" + codes + b"\x00")
    one = b"".join(segment(0xDA, bytes([1, i + 1, 0]) + b"\x00\x3f\x00") + b"\x5a\x3c" for i in range(components))
    return out + one * scans + b"\xff\xd9"


def png(width, height, rows=None, depth=8, color=2, interlace=0, before=b"", data=None):
    """A PNG of zeros with its first `rows` (default: all) and other chunks before its data."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    if data is None:
        # Interlaced, more bytes, as each of seven passes has rows.
        size = (height if rows is None else rows) * (1 + width * channels * depth // 8) + interlace * 2 * height
        packer, data = zlib.compressobj(9), b""
        while size > 0:
            data += packer.compress(bytes(min(size, 1 << 24)))
            size -= 1 << 24
        data = chunk(b"IDAT", data + packer.flush())
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace))
    return b"\x89PNG\r\n\x1a\n" + head + before + data + chunk(b"IEND", b"")


def png_text(kind, count, size=7_900_000):
    """A small PNG with compressed chunks of `size` bytes each."""
    packed = zlib.compress(bytes(size), 9) if kind != b"zTXt" else zlib.compress(b"a" * size, 9)
    head = {b"zTXt": b"k\0\0", b"iTXt": b"k\0\x01\0\0\0", b"iCCP": b"k\0\0"}[kind]
    return png(8, 8, before=chunk(kind, head + packed) * count)


def gif(frames, screen, frame):
    """A GIF of black frames, which may be larger than its screen."""
    file = io.BytesIO()
    Image.new("L", frame).save(file, "GIF")
    data = file.getvalue()
    start = 13 + 3 * 2 ** ((data[10] & 7) + 1)
    return data[:6] + struct.pack("<HH", *screen) + data[10:start] + data[start:-1] * frames + b";"


def long_chunk(kind):
    """A PNG of 141 bytes with a chunk that claims 2 GB."""
    return png(8, 8)[:33] + struct.pack(">I", 2**31 - 1) + kind + b"x" * 100


def tiff(tags, size, held):
    """A TIFF with more tags, each of `size` bytes, which share the same `held` bytes."""
    fields = {256: (3, 8), 257: (3, 8), 258: (3, 8), 259: (3, 1), 262: (3, 1), 273: (4, 8), 277: (3, 1), 278: (3, 8)}
    fields = {tag: (kind, 1, value) for tag, (kind, value) in fields.items()} | {279: (4, 1, 64)}
    fields |= {40_000 + i: (1, size, 8) for i in range(tags)}
    listed = b"".join(struct.pack("<HHII", tag, *field) for tag, field in fields.items())
    return struct.pack("<4sI", b"II*\0", 8 + held) + bytes(held) + struct.pack("<H", len(fields)) + listed + bytes(4)


def long_parts():
    """Returns {name: bytes} of small files with a part that is longer than the rest of the file."""
    jpeg, webp, still = jpeg_sequential(8, 1), by_pillow(8, "WEBP"), gif(1, (8, 8), (8, 8))
    found = {f"PNG, {kind.decode()} of 2 GB": long_chunk(kind) for kind in CHUNKS}
    return found | {
        "JPEG, comment of 65 kB": jpeg[:2] + b"\xff\xfe\xff\xff" + jpeg[2:],
        "WebP of 2 GB": webp[:4] + struct.pack("<I", 2**31) + webp[8:],
        "WebP, chunk of 2 GB": webp[:16] + struct.pack("<I", 2**31) + webp[20:],
        "GIF, comment of 255 bytes": still[:25] + b"!\xfe\xff",
        "TIFF, tag of 2 GB": tiff(1, 2**31, 64),
        "TIFF, 1,000 tags that share 1 MB": tiff(1000, 10**6, 10**6),
    }


def by_pillow(side, kind, frames=1, **options):
    """A black picture, which may have several frames."""
    file, black = io.BytesIO(), Image.new("RGB", (side, side))
    more = {"save_all": True, "append_images": [black] * (frames - 1)} if frames > 1 else {}
    black.save(file, kind, **more, **options)
    return file.getvalue()
