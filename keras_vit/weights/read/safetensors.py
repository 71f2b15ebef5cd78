"""The .safetensors format: an 8-byte length, a JSON header, and the arrays' bytes, of which it keeps no checksum.

It is read here, and not by its own package, since that gives NumPy no bfloat16 in its older releases and hides
the bytes from the digest that our own files carry.
"""

import hashlib
import json
import math
import os
from typing import NamedTuple

import numpy as np

from keras_vit.weights.read.file import WeightsFile, check_is_file, refuse, refusing_damage

# bfloat16 is the upper half of a float32, which NumPy can hold as an integer.
DTYPES = {"F16": np.dtype("<f2"), "BF16": np.dtype("<u2"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8")}

# The keys of the file's metadata under which our own files keep their facts and a digest of all that they hold.
FACTS = "keras_vit"
DIGEST = "keras_vit_sha256"

# The format's own limit.
_LONGEST_HEADER = 100_000_000


class SafetensorsEntry(NamedTuple):
    """Where one array lies behind the header, known before its data is read."""

    shape: tuple
    dtype: str
    start: int
    end: int


class SafetensorsFile(WeightsFile):
    """A .safetensors file of float arrays.

    A file that this package wrote carries a SHA-256 of its header and data, which is checked before the first array is
    read.

    Args:
        path: Path of the file.

    Attributes:
        entries: Dict from the keys to their SafetensorsEntry.
        facts: The file's metadata, strings; under "keras_vit" what this package wrote, parsed.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no .safetensors file, is damaged, or holds anything but arrays of floats.
    """

    container = "safetensors"

    def __init__(self, path):
        super().__init__(path)
        check_is_file(self.path)
        self._header, self._data = self._read_header()
        metadata = self._header.get("__metadata__", {})
        if not (isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())):
            raise refuse(self.path, "its header is damaged (its metadata is no object of strings)")
        self._digest = metadata.get(DIGEST)
        self.facts = self._facts(metadata)
        for key, value in self._header.items():
            if key != "__metadata__":
                self.entries[key] = self._entry(key, value)
        if not self.entries:
            raise refuse(self.path, "it holds no arrays")
        self._check_layout()

    def _read_header(self):
        size = os.path.getsize(self.path)
        with open(self.path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise refuse(
                    self.path,
                    f"it is no .safetensors file, or truncated: its header would have {length} bytes and it has {size}",
                )
            data = file.read(length)
        with refusing_damage(self.path, "its header is damaged"):
            header = json.loads(data.decode(), object_pairs_hook=self._unique)
            if not isinstance(header, dict):
                raise refuse(self.path, "its header is no JSON object")
        return header, 8 + length

    def _unique(self, pairs):
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            raise refuse(self.path, f"it holds {next(key for key in keys if keys.count(key) > 1)!r} twice")
        return found

    def _facts(self, metadata):
        facts = {key: value for key, value in metadata.items() if key != DIGEST}
        if FACTS in facts:
            # Both are written together, so that a damaged name of either shows.
            if self._digest is None:
                raise refuse(self.path, f"its header is damaged (it has {FACTS!r} and no {DIGEST!r})")
            with refusing_damage(self.path, f"its header is damaged at {FACTS!r}"):
                facts[FACTS] = json.loads(facts[FACTS])
        return facts

    def _entry(self, key, value):
        if not (isinstance(value, dict) and value.keys() == {"dtype", "shape", "data_offsets"}):
            raise refuse(self.path, f"its header is damaged (it describes {key!r} as {value!r})")
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise refuse(self.path, f"{key!r} is of dtype {dtype}, expected floats ({', '.join(DTYPES)})")
        for numbers in (shape, offsets):
            # A bool is an int to Python.
            if not (isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)):
                raise refuse(self.path, f"its header is damaged (it describes {key!r} as {value!r})")
        if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * DTYPES[dtype].itemsize:
            raise refuse(self.path, f"{key!r} lies at bytes {offsets}, which do not match its shape {tuple(shape)}")
        return SafetensorsEntry(tuple(shape), dtype, *offsets)

    def _check_layout(self):
        """Refuses arrays that overlap or leave gaps, and a file that is longer or shorter than they are."""
        end = 0
        for key, entry in sorted(self.entries.items(), key=lambda item: item[1][2:]):
            if entry.start != end:
                raise refuse(self.path, f"{key!r} begins at byte {entry.start}, and the array before it ends at {end}")
            end = entry.end
        size = os.path.getsize(self.path) - self._data
        if size != end:
            raise refuse(self.path, f"it is truncated or damaged: it holds {size} bytes of data, its header says {end}")

    def read(self, keys):
        if self._digest is not None:
            self._check_digest()
        return super().read(keys)

    def _check_digest(self):
        with open(self.path, "rb") as file:
            file.seek(self._data)
            found = hashlib.file_digest(file, lambda: begin_digest(self._header)).hexdigest()
        if found != self._digest:
            raise refuse(
                self.path,
                "it is damaged, or was changed after it was written: the SHA-256 of its contents is "
                f"{found}, and it says {self._digest}",
            )
        # One pass is enough, however often it is read from.
        self._digest = None

    def _read(self, file, key):
        entry = self.entries[key]
        data = np.empty(entry.end - entry.start, "uint8")
        file.seek(self._data + entry.start)
        if file.readinto(data) != data.size:
            raise refuse(self.path, f"{key!r} is truncated")
        array = data.view(DTYPES[entry.dtype])
        if entry.dtype == "BF16":
            array = array.astype("uint32")
            array <<= 16
            array = array.view("float32")
        return array.reshape(entry.shape)


def begin_digest(header):
    """Returns a SHA-256 that has taken in a header in one spelling; it then takes in all bytes behind the header.

    Args:
        header: Dict, the header of a .safetensors file. A digest in its metadata is left out.
    """
    metadata = {key: value for key, value in header.get("__metadata__", {}).items() if key != DIGEST}
    spelled = json.dumps({**header, "__metadata__": metadata}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(spelled.encode())
