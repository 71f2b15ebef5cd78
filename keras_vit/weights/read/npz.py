"""Reads .npz archives of the official code and big_vision."""

import io
import json
import math
import zlib

import numpy as np

from keras_vit.weights.read.bounds import open_archive
from keras_vit.weights.read.file import Entry, WeightsFile, refuse, refusing_damage

# keras_vit writes metadata in the zip comment, and a checksum of the metadata under this key. Zip itself stores no
# checksum of the comment.
CHECKSUM = "keras_vit_crc32"

# The number of bytes to read of an array's header. NumPy refuses longer headers.
_HEADER_BYTES = 10_100
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class NpzFile(WeightsFile):
    """An .npz archive of float arrays. If the zip comment is a JSON object, it is the metadata `facts`."""

    container = "npz"

    def __init__(self, path):
        super().__init__(path)
        self.verified = True
        with open(self.path, "rb") as file:
            magic = file.read(4)
        if magic[:2] != b"PK":
            raise refuse(self.path, f"it is not an .npz archive: its first bytes are {magic!r}, expected b'PK'")
        with open_archive(self.path) as archive:
            self.comment = archive.comment
            self._check_end(len(archive.infolist()))
            for info in archive.infolist():
                self._add(archive, info)
        if not self.entries:
            raise refuse(self.path, "it holds no arrays")
        self.facts = self._facts()

    def _check_end(self, count):
        """Raises an error for damage that zipfile accepts: a truncated comment or directory, or trailing bytes."""
        with open(self.path, "rb") as file:
            file.seek(-22 - len(self.comment), 2)
            record = file.read(22)
        if record[:4] != b"PK\x05\x06" or int.from_bytes(record[20:], "little") != len(self.comment):
            raise refuse(self.path, "it is truncated or damaged (the file does not end with its last record)")
        # Compare the number of members. If a length in the archive's directory is damaged, zipfile misses members.
        said = int.from_bytes(record[10:12], "little")
        if count != said:
            raise refuse(self.path, f"it is truncated or damaged (it lists {count} of {said} members)")

    def _add(self, archive, info):
        key = info.filename.removesuffix(".npy")
        if key == info.filename:
            raise refuse(self.path, f"its member {info.filename!r} is not an array")
        # NumPy parses an array's header as a Python literal. Deep nesting in a damaged header gives MemoryError.
        with archive.open(info) as packed, refusing_damage(self.path, also=MemoryError):
            # Read only this many bytes, because a damaged header can have any length.
            member = io.BytesIO(packed.read(_HEADER_BYTES))
            version = np.lib.format.read_magic(member)
            if version not in _HEADERS:
                raise refuse(self.path, f"it is damaged: {info.filename!r} has the unknown format version {version}")
            shape, _, dtype = _HEADERS[version](member)
            header_size = member.tell()
        if dtype.hasobject:
            raise refuse(self.path, f"{key!r} holds Python objects, which could run code and are never read")
        if dtype.kind != "f":
            raise refuse(self.path, f"{key!r} is of dtype {dtype}, expected floats")
        if info.file_size != header_size + math.prod(shape) * dtype.itemsize:
            raise refuse(self.path, f"{key!r} has {info.file_size} bytes, which do not match its shape {shape}")
        if key in self.entries:
            raise refuse(self.path, f"it holds {key!r} twice")
        self.entries[key] = Entry(shape, dtype)

    def _facts(self):
        try:
            found = json.loads(self.comment)
        except (ValueError, RecursionError):
            # A comment that other code wrote may contain anything, so refuse only a comment of keras_vit.
            if b"keras_vit" in self.comment:
                raise refuse(self.path, "the comment of the archive is damaged") from None
            return {}
        facts = found if isinstance(found, dict) else {}
        if facts.pop(CHECKSUM, None) not in (None, comment_checksum(facts)):
            raise refuse(self.path, "the comment of the archive is damaged (its checksum is wrong)")
        return facts

    def _open(self):
        return np.load(self.path, allow_pickle=False)

    def _read(self, archive, key):
        return archive[key]


def comment_checksum(facts):
    """Returns the CRC-32 of a dict as JSON with sorted keys."""
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode())
