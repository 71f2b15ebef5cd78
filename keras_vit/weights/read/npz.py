"""The .npz archives of the official code and of big_vision."""

import json
import math
import mmap
import zipfile
import zlib
from typing import NamedTuple

import numpy as np

from keras_vit.weights.read.file import WeightsFile, check_is_file, refuse, refusing_damage

# The key of the comment under which our own files keep a checksum of the rest of it, which the archive does not.
CHECKSUM = "keras_vit_crc32"

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

# Windows has no flags, and no other kind of memory.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}


class NpzEntry(NamedTuple):
    """Where one array lies in the file, known before its data is read."""

    member: str
    shape: tuple
    dtype: np.dtype
    fortran_order: bool
    header_size: int


class NpzFile(WeightsFile):
    """An .npz archive of float arrays.

    Args:
        path: Path of the file.

    Attributes:
        entries: Dict from the keys to their NpzEntry.
        comment: The archive's comment, bytes.
        facts: The comment, where it is a JSON object; else empty.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no .npz archive, is damaged, or holds anything but arrays of floats.
    """

    container = "npz"

    def __init__(self, path):
        super().__init__(path)
        check_is_file(self.path)
        with open(self.path, "rb") as file:
            magic = file.read(4)
        if magic[:2] != b"PK":
            raise refuse(self.path, f"it is no .npz archive: its first bytes are {magic!r}, expected b'PK\\x03\\x04'")
        with refusing_damage(self.path), zipfile.ZipFile(self.path) as archive:
            self.comment = archive.comment
            self._check_end(len(archive.infolist()))
            for info in archive.infolist():
                self._add(info, self._read_header(archive, info))
        if not self.entries:
            raise refuse(self.path, "it holds no arrays")
        self.facts = self._facts()

    def _check_end(self, count):
        """Refuses what zipfile accepts: a comment cut short, bytes behind the end, and a directory cut short."""
        with open(self.path, "rb") as file:
            file.seek(-22 - len(self.comment), 2)
            record = file.read(22)
        if record[:4] != b"PK\x05\x06" or int.from_bytes(record[20:], "little") != len(self.comment):
            raise refuse(self.path, "it is truncated or damaged (its last record does not end it)")
        # One damaged length in the directory would swallow the entries behind it.
        said = int.from_bytes(record[10:12], "little")
        if count != said:
            raise refuse(self.path, f"it is truncated or damaged (it lists {count} of {said} members)")

    def _read_header(self, archive, info):
        if not info.filename.endswith(".npy"):
            raise refuse(self.path, f"its member {info.filename!r} is no array")
        with archive.open(info) as member:
            version = np.lib.format.read_magic(member)
            read = _HEADERS.get(version)
            if read is None:
                raise refuse(self.path, f"{info.filename!r} has the unknown format version {version}")
            # Python's parser runs out of its own memory on deep nesting.
            with refusing_damage(self.path, also=(TypeError, LookupError, MemoryError)):
                header = read(member)
            return (*header, member.tell())

    def _add(self, info, header):
        key = info.filename.removesuffix(".npy")
        shape, fortran_order, dtype, header_size = header
        if dtype.hasobject:
            raise refuse(self.path, f"{key!r} holds Python objects, which could run code and are never read")
        if dtype.kind != "f":
            raise refuse(self.path, f"{key!r} is of dtype {dtype}, expected floats")
        if info.file_size != header_size + math.prod(shape) * dtype.itemsize:
            raise refuse(self.path, f"{key!r} has {info.file_size} bytes, which do not match its shape {shape}")
        if key in self.entries:
            raise refuse(self.path, f"it holds {key!r} twice")
        self.entries[key] = NpzEntry(info.filename, shape, dtype, fortran_order, header_size)

    def _facts(self):
        try:
            found = json.loads(self.comment)
        except (ValueError, RecursionError):
            # Another's comment may say anything.
            if b"keras_vit" in self.comment:
                raise refuse(self.path, "its comment is damaged") from None
            return {}
        facts = found if isinstance(found, dict) else {}
        if facts.pop(CHECKSUM, None) not in (None, comment_checksum(facts)):
            raise refuse(self.path, "its comment is damaged (its checksum is wrong)")
        return facts

    def _open(self):
        return zipfile.ZipFile(self.path)

    def _read(self, archive, key):
        entry = self.entries[key]
        # Memory of its own, which goes back to the system with the array: pieces of a heap would not, and a model that
        # is loaded array by array would not shrink what waits.
        size = math.prod(entry.shape) * entry.dtype.itemsize
        buffer = mmap.mmap(-1, max(size, 1), **_PRIVATE)
        array = np.ndarray(entry.shape, entry.dtype, buffer, order="F" if entry.fortran_order else "C")
        data = memoryview(buffer)[:size]
        with archive.open(entry.member) as member:
            member.read(entry.header_size)
            while data and (part := member.read(min(len(data), 1 << 18))):
                data[: len(part)] = part
                data = data[len(part) :]
            # The member's end is where its CRC is checked.
            if data or member.read(1):
                raise refuse(self.path, f"{key!r} is truncated or damaged")
        return array


def comment_checksum(facts):
    """Returns the CRC-32 of a dict, in one spelling as JSON."""
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode())
