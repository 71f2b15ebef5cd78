"""Reads checkpoint files without trusting them: nothing is unpickled, and what is damaged is refused by name."""

import math
import os
import struct
import zipfile
import zlib
from typing import NamedTuple

import numpy as np

# What the standard library and NumPy raise on damaged archives; each becomes a ValueError that names the file.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    ValueError,
    OSError,
    MemoryError,
    OverflowError,
    TypeError,
)


class Entry(NamedTuple):
    """Where one array lies in the file, known before its data is read."""

    member: str
    shape: tuple
    dtype: np.dtype
    fortran_order: bool
    header_size: int


class NpzFile:
    """An .npz archive of float arrays: shapes first, data one array at a time.

    Args:
        path: Path of the file.

    Attributes:
        entries: Dict from the keys to their Entry.
        comment: The archive's comment, bytes.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no .npz archive, is damaged, or holds anything but arrays of floats.
    """

    def __init__(self, path):
        self.path = os.fspath(path)
        self.entries = {}
        self._check_is_archive()
        try:
            with zipfile.ZipFile(self.path) as archive:
                self.comment = archive.comment
                self._check_end()
                for info in archive.infolist():
                    self._add(info, self._read_header(archive, info))
        except _DAMAGE as error:
            if isinstance(error, _RefusedError):
                raise
            raise _refuse(self.path, f"it is truncated or damaged ({error})") from error
        if not self.entries:
            raise _refuse(self.path, "it holds no arrays")

    def _check_is_archive(self):
        if not os.path.exists(self.path):
            raise FileNotFoundError(f"Expected a weights file. Received: {self.path!r}, where there is no file.")
        if os.path.isdir(self.path):
            raise _refuse(self.path, "it is a folder; expected an .npz file")
        with open(self.path, "rb") as file:
            magic = file.read(4)
        if not magic:
            raise _refuse(self.path, "it is empty (0 bytes)")
        if magic[:2] != b"PK":
            raise _refuse(self.path, f"it is no .npz archive: its first bytes are {magic!r}, expected b'PK\\x03\\x04'")

    def _check_end(self):
        """Refuses a file cut inside its comment, or grown behind it, which zipfile itself accepts."""
        with open(self.path, "rb") as file:
            file.seek(-22 - len(self.comment), os.SEEK_END)
            record = file.read(22)
        if record[:4] != b"PK\x05\x06" or int.from_bytes(record[20:], "little") != len(self.comment):
            raise _refuse(self.path, "it is truncated or damaged (its last record does not end it)")

    def _read_header(self, archive, info):
        if not info.filename.endswith(".npy"):
            raise _refuse(self.path, f"its member {info.filename!r} is no array")
        with archive.open(info) as member:
            version = np.lib.format.read_magic(member)
            if version == (1, 0):
                header = np.lib.format.read_array_header_1_0(member)
            elif version == (2, 0):
                header = np.lib.format.read_array_header_2_0(member)
            else:
                raise _refuse(self.path, f"{info.filename!r} has the unknown format version {version}")
            return (*header, member.tell())

    def _add(self, info, header):
        key = info.filename.removesuffix(".npy")
        shape, fortran_order, dtype, header_size = header
        if dtype.hasobject:
            raise _refuse(self.path, f"{key!r} holds Python objects, which could run code and are never read")
        if dtype.kind != "f":
            raise _refuse(self.path, f"{key!r} is of dtype {dtype}, expected floats")
        if info.file_size != header_size + math.prod(shape) * dtype.itemsize:
            raise _refuse(self.path, f"{key!r} has {info.file_size} bytes, which do not match its shape {shape}")
        if key in self.entries:
            raise _refuse(self.path, f"it holds {key!r} twice")
        self.entries[key] = Entry(info.filename, shape, dtype, fortran_order, header_size)

    def read(self, keys):
        """Yields (key, float32 array) for each of `keys`, one array in memory at a time.

        Raises:
            ValueError: If the data is damaged or holds NaN or infinite numbers.
        """
        try:
            with zipfile.ZipFile(self.path) as archive:
                for key in keys:
                    yield key, self._read(archive, key)
        except _DAMAGE as error:
            if isinstance(error, _RefusedError):
                raise
            raise _refuse(self.path, f"it is damaged ({error})") from error

    def _read(self, archive, key):
        entry = self.entries[key]
        # Reading a member to its end also checks its CRC.
        data = archive.read(entry.member)
        array = np.frombuffer(data, entry.dtype, offset=entry.header_size)
        array = array.reshape(entry.shape, order="F" if entry.fortran_order else "C")
        array = np.asarray(array, "float32")
        if not np.isfinite(array).all():
            raise _refuse(self.path, f"{key!r} holds {np.count_nonzero(~np.isfinite(array))} NaN or infinite numbers")
        return array


class _RefusedError(ValueError):
    """A refusal that already says what is wrong."""


def _refuse(path, what):
    return _RefusedError(f"Cannot read weights from {os.fspath(path)!r}: {what}.")
