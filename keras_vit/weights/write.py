"""Writes arrays to files, which appear whole or not at all."""

import json
import os
import zipfile
from pathlib import Path

import numpy as np

from keras_vit.files import replacing
from keras_vit.weights.read.digest import sha256
from keras_vit.weights.read.npz import CHECKSUM, comment_checksum
from keras_vit.weights.read.safetensors import DIGEST, DTYPES, FACTS, begin_digest

_TAGS = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}


def _renew_sidecar(path):
    """Writes the hash of the file anew where one lies beside it, which would call it damaged otherwise."""
    sidecar = Path(f"{os.fspath(path)}.sha256")
    if sidecar.exists():
        with replacing(sidecar) as temporary:
            temporary.write_text(f"{sha256(path)}  {Path(path).name}\n", encoding="ascii")


def write_npz(path, arrays, comment):
    """Writes an .npz archive.

    Args:
        path: Path of the file; an existing file is replaced.
        arrays: Dict from keys to arrays.
        comment: Dict, written to the archive's comment as JSON, with a checksum.
    """
    with replacing(path) as temporary:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.comment = json.dumps({**comment, CHECKSUM: comment_checksum(comment)}).encode()
    _renew_sidecar(path)


def write_safetensors(path, arrays, facts, metadata=None):
    """Writes a .safetensors file with a digest of all it holds, by which this package finds damage.

    Args:
        path: Path of the file; an existing file is replaced.
        arrays: Dict from keys to arrays of floats.
        facts: Dict, written to the file's metadata as JSON, for this package to read.
        metadata: Dict from strings to strings, written beside it for other code. "format" is "pt" unless it says
            otherwise, without which PyTorch code refuses a file.

    Raises:
        ValueError: If an array is not of floats.
    """
    header = {"__metadata__": {"format": "pt", **(metadata or {}), FACTS: json.dumps(facts)}}
    end = 0
    for key, array in arrays.items():
        tag = _TAGS.get(np.asarray(array).dtype.name)
        if tag is None:
            raise ValueError(f"Expected arrays of floats. Received: {key!r} of dtype {np.asarray(array).dtype}")
        start, end = end, end + np.asarray(array).size * DTYPES[tag].itemsize
        header[key] = {"dtype": tag, "shape": list(np.shape(array)), "data_offsets": [start, end]}
    digest = begin_digest(header)
    for key, array in arrays.items():
        digest.update(_data(array, header[key]["dtype"]))
    header["__metadata__"][DIGEST] = digest.hexdigest()
    text = json.dumps(header, separators=(",", ":")).encode()
    # Spaces bring the data to a multiple of 8 bytes.
    text += b" " * (-len(text) % 8)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for key, array in arrays.items():
            file.write(_data(array, header[key]["dtype"]))
    _renew_sidecar(path)


def _data(array, tag):
    """The bytes of an array in C order, without a copy where they lie so already."""
    array = np.asarray(array, order="C").reshape(-1)
    array = array.view("uint16") if tag == "BF16" else array
    return memoryview(np.asarray(array, DTYPES[tag]).view("uint8"))
