"""Damages files to check that readers notice it."""

import os

import numpy as np
import pytest

from keras_vit.weights.read import open_checkpoint, sha256
from tests.errors import refuses


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


def refusal(path):
    """Returns the message of the error that refuses a file."""
    with pytest.raises(ValueError, match=path.name) as error:
        contents(path)
    return str(error.value)


def check_unreadable(message, path):
    """Checks that a file is refused with this message before its arrays are read."""
    refuses(message, open_checkpoint, path)


def flipped(data, position, bit):
    return data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def each_flip(path, start):
    """Writes the file with each bit from byte `start` on flipped, one after another."""
    data = path.read_bytes()
    for place in range(start * 8, len(data) * 8):
        yield path.write_bytes(flipped(data, *divmod(place, 8)))


def check_damage(path, refused_at_least):
    """Checks that 40 copies with a flipped bit and 40 truncated ones are refused, or read without a difference."""
    (facts, arrays), data, refused = contents(path), path.read_bytes(), 0
    places, bits, ends = np.random.default_rng(0).integers(([len(data)], [8], [len(data)]), size=(3, 40))
    flips = [flipped(data, place, bit) for place, bit in zip(places, bits, strict=True)]
    for bad in flips + [data[:end] for end in ends]:
        path.write_bytes(bad)
        try:
            found, read = contents(path)
        except ValueError as error:
            assert path.name in str(error)
            refused += 1
        else:
            assert found == facts and read.keys() == arrays.keys()
            assert all(np.array_equal(read[key], arrays[key]) for key in arrays)
    path.write_bytes(data)
    assert refused >= refused_at_least


def write_sidecar(path):
    path.with_name(path.name + ".sha256").write_text(f"{sha256(path)}  {path.name}\n")
