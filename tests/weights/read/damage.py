"""Damages files by the dozen, and looks for a reader that does not notice."""

import numpy as np

from keras_vit.weights.read import open_checkpoint, sha256


def contents(path):
    """What a reader makes of a file: its facts and all its arrays."""
    checkpoint = open_checkpoint(path)
    return checkpoint.facts, dict(checkpoint.read(checkpoint.entries))


def same(a, b):
    facts, arrays = a
    return facts == b[0] and arrays.keys() == b[1].keys() and all(np.array_equal(arrays[k], b[1][k]) for k in arrays)


def flipped(data, position, bit):
    return data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def damaged(data, count=40, seed=0):
    """Yields `count` copies with one bit flipped, and `count` that end too early."""
    rng = np.random.default_rng(seed)
    for position, bit in zip(rng.integers(len(data), size=count), rng.integers(8, size=count), strict=True):
        yield flipped(data, position, bit)
    for end in rng.integers(len(data), size=count):
        yield data[:end]


def check_damage(path, refused_at_least):
    """Checks that each damaged copy of a file is refused by its name, or read as if it were whole."""
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
