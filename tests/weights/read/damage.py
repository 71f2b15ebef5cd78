"""Damages files to check that readers notice it."""

import os

import numpy as np
import pytest

from keras_vit.weights.read import open_checkpoint, sha256


class Bomb:
    """Creates a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def contents(path):
    """Returns the facts and all arrays that a reader finds in a file."""
    checkpoint = open_checkpoint(path)
    return checkpoint.facts, dict(checkpoint.read(checkpoint.entries))


def same(a, b):
    facts, arrays = a
    return facts == b[0] and arrays.keys() == b[1].keys() and all(np.array_equal(arrays[k], b[1][k]) for k in arrays)


def check_unreadable(message, path):
    """Checks that a file is refused with this message before its arrays are read."""
    with pytest.raises(ValueError, match=message):
        open_checkpoint(path)


def flipped(data, position, bit):
    return data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def each_flip(path, start):
    """Writes the file with each bit from byte `start` on flipped, one after another."""
    data = path.read_bytes()
    for place in range(start * 8, len(data) * 8):
        yield path.write_bytes(flipped(data, *divmod(place, 8)))


def damaged(data, count=40, seed=0):
    """Yields `count` copies with one flipped bit, and `count` truncated ones."""
    rng = np.random.default_rng(seed)
    for position, bit in zip(rng.integers(len(data), size=count), rng.integers(8, size=count), strict=True):
        yield flipped(data, position, bit)
    for end in rng.integers(len(data), size=count):
        yield data[:end]


def check_damage(path, refused_at_least):
    """Checks that each damaged copy of a file is refused, or read without a difference."""
    good, data, refused = contents(path), path.read_bytes(), 0
    for bad in damaged(data):
        path.write_bytes(bad)
        try:
            read = contents(path)
        except ValueError as error:
            assert path.name in str(error)
            refused += 1
        else:
            assert same(read, good)
    path.write_bytes(data)
    assert refused >= refused_at_least


def write_sidecar(path):
    path.with_name(path.name + ".sha256").write_text(f"{sha256(path)}  {path.name}\n")
