"""Folders of small pictures for the tests."""

import struct

import numpy as np

from keras_vit.data.source import tf

HUGE_PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 40000, 40000) + b"\x08\x02\0\0\0" + b"x" * 50


def picture(value, size=(24, 20, 3)):
    """Returns random pixels around a value, which identifies the picture."""
    return np.clip(np.random.default_rng(value).integers(-20, 20, size) + value, 0, 255).astype("uint8")


def jpeg(value, size=(24, 20, 3)):
    return tf.io.encode_jpeg(picture(value, size), quality=100).numpy()


def write_classes(folder, count, num_classes=4):
    """Writes JPEGs, whose values are their numbers, into class folders. Returns the paths by number."""
    paths = []
    for i in range(count):
        path = folder / f"class{i % num_classes}" / f"{i:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(i))
        paths.append(path)
    return paths


def batches(data):
    """Returns the arrays of each batch."""
    return [[np.asarray(part) for part in tf.nest.flatten(batch)] for batch in data]


def equal(a, b):
    return len(a) == len(b) and all(
        np.array_equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )
