"""Writes .npz and .safetensors files. If writing fails, the old file stays unchanged."""

import json
import os
import zipfile
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from keras_vit.files import replacing
from keras_vit.weights.read import sha256
from keras_vit.weights.read.npz import CHECKSUM, comment_checksum
from keras_vit.weights.read.safetensors import DIGEST, FACTS, contents_digest


def write_npz(path, arrays, comment):
    """Writes a dict of arrays as an .npz archive. The zip comment is the dict `comment` with a checksum, in JSON."""
    text = json.dumps({**comment, CHECKSUM: comment_checksum(comment)}).encode()
    if len(text) > zipfile.ZIP_MAX_COMMENT:
        expected = f"a config of at most {zipfile.ZIP_MAX_COMMENT} bytes, the limit of .npz files"
        received = f"{len(text)} bytes. Are there many class names? Write a .safetensors or .keras file instead"
        raise ValueError(f"Expected {expected}. Received: {received}")
    with replacing(path) as temporary:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.comment = text
    _renew_sidecar(path)


def write_safetensors(path, arrays, facts):
    """Writes a dict of float arrays as a .safetensors file, with the dict `facts` as JSON in its metadata."""
    for key, array in arrays.items():
        if not np.issubdtype(array.dtype, np.floating) and array.dtype.name != "bfloat16":
            raise ValueError(f"Expected arrays of floats. Received: {key!r} of dtype {array.dtype}")
    arrays = {key: np.asarray(array, order="C") for key, array in arrays.items()}
    # transformers refuses a file without "format".
    metadata = {"format": "pt", FACTS: json.dumps(facts)}
    with replacing(path) as temporary:
        try:
            save_file(arrays, temporary, metadata)
            save_file(arrays, temporary, {**metadata, DIGEST: contents_digest(temporary)})
        except SafetensorError as error:
            raise OSError(f"Cannot write {os.fsdecode(path)!r}: {error}") from error
    _renew_sidecar(path)


def _renew_sidecar(path):
    """If a .sha256 file lies next to a file that was just written, writes the new hash into it."""
    sidecar = Path(f"{os.fspath(path)}.sha256")
    if sidecar.exists():
        with replacing(sidecar) as temporary:
            temporary.write_text(f"{sha256(path)}  {Path(path).name}\n", encoding="ascii")
