"""What all readers have in common: one interface, and one way to refuse a file."""

import contextlib
import errno
import json
import os
import struct
import zipfile
import zlib
from typing import NamedTuple

import numpy as np

# What the standard library and NumPy raise on damaged files; each becomes a ValueError that names the file.
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
    OverflowError,
)


class Entry(NamedTuple):
    """One array of a file, known before its data is read."""

    shape: tuple
    dtype: object


class WeightsFile:
    """A weights file, or a folder of them: shapes first, data one array at a time.

    A format's reader fills `entries` and `facts` in `__init__`, and says in `_open` what to hold open while arrays are
    read and in `_read` how to read one.

    Args:
        path: Path of the file or folder.

    Attributes:
        path: String, the path.
        container: String, the format: "npz", "safetensors", "pth", "h5", "huggingface" or "timm".
        entries: Dict from each key to an object with the array's `shape`, a tuple of ints.
        facts: Dict of what the file says beside its arrays; its keys depend on the container.
    """

    container = None
    # What the format's library raises on damaged files beside the errors of all.
    damage = ()

    def __init__(self, path):
        self.path = os.fsdecode(path)
        self.entries = {}
        self.facts = {}

    def read(self, keys):
        """Yields (key, float32 array) for each of `keys` in their order, one array in memory at a time.

        The arrays are the caller's to keep.

        Raises:
            KeyError: If the file has no such key.
            ValueError: If the data is damaged or holds NaN or infinite numbers.
        """
        keys = list(keys)
        for key in keys:
            if key not in self.entries:
                raise KeyError(f"{self.path!r} does not hold {key!r}")
        with contextlib.ExitStack() as stack:
            with self._refusing_damage():
                source = stack.enter_context(self._open())
            for key in keys:
                with self._refusing_damage():
                    array = self._read(source, key)
                yield key, self._finite(key, array)

    def _refusing_damage(self):
        return refusing_damage(self.path, "it is damaged", self.damage)

    def _open(self):
        return open(self.path, "rb")

    def _read(self, source, key):
        """Returns one array, of any float dtype."""
        raise NotImplementedError

    def _finite(self, key, array):
        with np.errstate(over="ignore"):
            array = np.asarray(array, "float32")
        flat = array.ravel(order="K")
        # In parts that stay in the processor's cache, and need no mask as large as the array.
        parts = (flat[start : start + (1 << 18)] for start in range(0, flat.size, 1 << 18))
        if not all(np.isfinite(part).all() for part in parts):
            raise refuse(self.path, f"{key!r} holds {np.count_nonzero(~np.isfinite(array))} NaN or infinite numbers")
        return array


class RefusedError(ValueError):
    """A refusal that already says what is wrong."""


def refuse(path, what):
    """Returns the error that says why a file cannot be read, to be raised."""
    return RefusedError(f"Cannot read weights from {os.fsdecode(path)!r}: {what}.")


@contextlib.contextmanager
def refusing_damage(path, what="it is truncated or damaged", also=()):
    """Turns what libraries raise on damaged files inside the block into a ValueError that names the file.

    Args:
        path: Path of the file.
        what: What is said of it.
        also: More classes of errors that damage raises there.
    """
    try:
        yield
    except RefusedError:
        raise
    except (*_DAMAGE, *also) as error:
        if is_of_the_system(error) and not isinstance(error, also):
            raise
        raise refuse(path, f"{what} ({error})") from error


def is_of_the_system(error):
    """Whether an error says that the system refused something, as memory or permission, and nothing of the file."""
    # Libraries give no number to what they find wrong, and a damaged offset is an invalid argument.
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno not in (None, 0, errno.EINVAL))


def check_is_file(path):
    """Refuses a path at which there is no file, or an empty one.

    Raises:
        FileNotFoundError: If there is nothing at the path.
        ValueError: If a folder, an empty file or one that only stands for another is there.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"Expected a weights file. Received: {os.fsdecode(path)!r}, where there is no file.")
    if os.path.isdir(path):
        raise refuse(path, "it is a folder; expected a file")
    # Opening a pipe would wait for ever.
    if not os.path.isfile(path):
        raise refuse(path, "it is no regular file")
    if not os.path.getsize(path):
        raise refuse(path, "it is empty (0 bytes)")
    check_is_no_stand_in(path)


def check_is_no_stand_in(path):
    """Refuses what servers and repositories give in place of a file: Git LFS's pointers, and web pages.

    Raises:
        ValueError: If such a file is at the path. It says what to do.
    """
    with open(path, "rb") as file:
        head = file.read(512).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        raise refuse(
            path,
            "it is a Git LFS pointer, a few lines that stand for the file. Run `git lfs pull` in its repository, or "
            "download the file itself",
        )
    if head.startswith((b"<!doctype html", b"<html", b"<?xml")):
        raise refuse(
            path,
            "it is a web page, which a server sent in place of the file, as to ask for a login or to say that it is not"
            " there. Download the file from its own address",
        )


def read_json(path):
    """Returns the JSON object of a file beside the weights, as a dict.

    Raises:
        ValueError: If the file holds anything else.
    """
    with refusing_damage(path, "it is no JSON file"):
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not isinstance(found, dict):
            raise refuse(path, f"it holds a JSON {type(found).__name__}, expected an object")
    return found
