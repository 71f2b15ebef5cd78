"""Detects the format of a file by its contents, not by its name."""

import os

from keras_vit.weights.read.bounds import open_archive
from keras_vit.weights.read.file import checked, refuse
from keras_vit.weights.read.folders import WHOLE_MODEL, HuggingFaceFolder, ShardedFile
from keras_vit.weights.read.h5 import H5File
from keras_vit.weights.read.npz import NpzFile
from keras_vit.weights.read.pth import PthFile
from keras_vit.weights.read.safetensors import SafetensorsFile
from keras_vit.weights.read.tensorflow import TensorFlowCheckpoint, index_in, is_index

# The magic number of torch's older format.
_TORCH = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")


def open_checkpoint(path):
    """Opens a checkpoint of any supported format as a `WeightsFile`. If its hash is known, checks it first."""
    if os.path.isdir(path):
        index = None if os.path.exists(os.path.join(path, "config.json")) else index_in(path)
        return HuggingFaceFolder(path) if index is None else TensorFlowCheckpoint(index)
    path = checked(path)
    with open(path, "rb") as file:
        head = file.read(32)
    return _reader(path, head)(path)


def _reader(path, head):
    if head.startswith(b"PK"):
        return _reader_of_zip(path)
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        return H5File
    if _TORCH in head:
        return PthFile
    # A .safetensors file begins with the length of its header in 8 bytes. The last of these bytes is 0, which no text
    # contains.
    if head[7:9] == b"\0{":
        return SafetensorsFile
    if head.lstrip().startswith(b"{"):
        return ShardedFile
    if is_index(path):
        return TensorFlowCheckpoint
    what = "; a Python pickle could run code and is never read" if head.startswith(b"\x80") else ""
    raise refuse(
        path,
        "it is not an .npz archive, nor a .safetensors, .pth or .h5 file, nor a checkpoint of TensorFlow: its first "
        f"bytes are {head[:8]!r}{what}",
    )


def _reader_of_zip(path):
    with open_archive(path) as archive:
        names = archive.namelist()
    if "config.json" in names and any(name.startswith("model.weights.") for name in names):
        raise refuse(path, f"it is a whole .keras model, not weights; read it {WHOLE_MODEL}")
    return PthFile if any(name.endswith("/data.pkl") for name in names) else NpzFile
