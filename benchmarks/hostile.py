"""Damaged bytes, configs, pictures and requests for fuzz.py, each made from a random generator."""

import base64
import functools
import io
import json
import sys
import zlib
from pathlib import Path

import numpy as np

# Makes the modules of the tests importable.
sys.path.append(str(Path(__file__).parents[1]))

from tests.hostile_images import chunk, gif, jpeg_scans, jpeg_sequential, long_parts, png, png_text

GOOD = {"instances": np.zeros((1, 16, 16, 3)).tolist()}
# Nearly the largest body that the server takes.
LARGE = 8_000_000
# Values that no config has.
HOSTILE = (
    *(None, True, False, -1, 0, 1, 3, 33_000, 10**9, 10**30, -(10**18), 0.5, -0.5, 1e308, float("nan"), float("inf")),
    *("", "a" * 10_000, "float32", "../../etc/passwd", "\0"),
    *([], {}, [0], [None], [[[]]], [10**9, 10**9], {"class_name": "Lambda"}, {"a": {"b": {}}}),
)


def rng_of(seed, name, case):
    return np.random.default_rng([seed, zlib.crc32(name.encode()), case])


def damaged(data, rng):
    """Returns bytes with one kind of damage, at the start, at the end or anywhere."""
    size = len(data)
    low, high = [(0, size), (0, min(size, 512)), (max(0, size - 512), size)][rng.integers(3)]
    at, length = int(rng.integers(low, high)), int(rng.integers(1, 65))
    head, block, tail = data[:at], data[at : at + length], data[at + length :]
    flipped = bytes([data[at] ^ (1 << int(rng.integers(8)))]) + block[1:]
    # The last kind of damage cuts off the end.
    blocks = [flipped, rng.bytes(len(block)), bytes(len(block)), b"", rng.bytes(length) + block, 2 * block, None]
    chosen = blocks[rng.integers(len(blocks))]
    return head if chosen is None else head + chosen + tail


def mutated(tree, rng):
    """Returns a copy of a JSON tree with a value replaced, removed, added or nested deeply."""
    tree = json.loads(json.dumps(tree))
    places = []

    def walk(node):
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(tree)
    node, key = places[rng.integers(len(places))]
    kind = rng.integers(8)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[f"unknown_{key}"] = node[key]
    elif kind == 2:
        node[key] = [node[key]]
    elif kind == 3:
        node[key] = str(node[key])
    else:
        node[key] = HOSTILE[rng.integers(len(HOSTILE))]
    return tree


def text_of(tree, rng):
    """Returns JSON text, sometimes of a tree below many lists."""
    text = json.dumps(tree)
    return text if rng.integers(20) else "[" * 5000 + text + "]" * 5000


@functools.cache
def costly(number):
    """Returns a small file that is costly to decode."""
    makers = (
        lambda: jpeg_scans(4992, 3000),
        lambda: jpeg_scans(1000, 30),
        lambda: jpeg_sequential(4096, 500),
        lambda: png(5000, 5000, interlace=1),
        lambda: png(4000, 4000, rows=1),
        lambda: png_text(b"zTXt", 20),
        lambda: png_text(b"iTXt", 20),
        lambda: gif(20, (4000, 4000), (4000, 4000)),
        *((lambda data=data: data) for data in long_parts().values()),
    )
    return makers[number % len(makers)]()


def picture(rng):
    """Returns a damaged or hostile picture of a random format."""
    from PIL import Image

    kind = rng.integers(7)
    if kind == 6:
        return costly(int(rng.integers(1000)))
    if kind == 0:
        sides = [(16384, 1500), (40_000, 40_000), (2**31 - 1, 2**31 - 1), (0, 5), (1, 60_000), (3000, 3000)]
        width, height = sides[rng.integers(len(sides))]
        few = chunk(b"IDAT", zlib.compress(bytes(10_000)))
        return png(width, height, data=None if width * height < 3e7 else few)
    buffer = io.BytesIO()
    image = Image.fromarray(rng.integers(0, 256, (40, 56, 3), "uint8"))
    image = image.convert(["RGB", "L", "P", "RGB"][rng.integers(4)])
    form = ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"][rng.integers(6)]
    options = {"progressive": True} if form == "JPEG" and rng.integers(2) else {}
    image.convert("RGB" if form in ("JPEG", "WEBP") and image.mode == "P" else image.mode).save(buffer, form, **options)
    return buffer.getvalue() if kind == 1 else damaged(buffer.getvalue(), rng)


def request(rng):
    """Returns ("post", body) or ("raw", bytes): a damaged or hostile request."""
    encoded = base64.b64encode(picture(rng)).decode()
    images = {"signature_name": "serving_bytes", "instances": [{"b64": encoded}] * int(rng.integers(1, 5))}
    small = {"signature_name": "serving_uint8", "inputs": {"images": np.zeros((1, 16, 16, 3), int).tolist()}}
    base = [GOOD, images, small][rng.integers(3)]
    kind = rng.integers(7)
    if kind == 0:
        return "post", json.dumps(images).encode()
    if kind == 6:
        value = (b"0", b"[]", b"{}", b"0.1234567890123456", b"9" * 4000, b'"a"', b'{"b64":"QUFB"}')[rng.integers(7)]
        body = b'{"instances":[' + (value + b",") * (LARGE // (len(value) + 1)) + value + b"]}"
        return "post", body.replace(b"instances", b"inputs") if rng.integers(2) else body
    if kind == 1:
        return "post", damaged(json.dumps(base).encode(), rng)
    if kind == 2:
        return "post", rng.bytes(int(rng.integers(0, 2000)))
    if kind == 3:
        body = json.dumps(base).encode()
        line = b"POST /v1/models/vit:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        return "raw", damaged(line, rng) + body
    return "post", text_of(mutated(base, rng), rng).encode()
