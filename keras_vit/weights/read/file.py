"""The base class of all readers, and checks for all files."""

import contextlib
import errno
import hashlib
import importlib
import json
import math
import os
import re
from typing import NamedTuple

import numpy as np

from keras_vit import arguments
from keras_vit.console import Progress
from keras_vit.files import describe_path
from keras_vit.weights.published import ROWS, SHA256_PREFIXES

# If a file has no checksum and contains a number above LARGEST, it is refused. The largest weight of ViT-B/16 is 3.6.
LARGEST = 1e4
# The largest size of a text file in bytes. An index of 100,000 arrays has 10 MB.
_LARGEST_TEXT = 16_000_000
_DIGEST = "[0-9a-fA-F]{64}"
_AGAIN = "download or copy it again"


class Entry(NamedTuple):
    """The shape and dtype of an array, from the file's header."""

    shape: tuple
    dtype: object


class WeightsFile:
    """A weights file or folder. `__init__` reads only `entries`, {key: `Entry`}, and `facts`, a dict of metadata."""

    # "npz", "safetensors", "pth", "h5", "tensorflow", "huggingface" or "timm".
    container = None

    def __init__(self, path):
        self.path = os.fsdecode(path)
        # True if all damage to the arrays is noticed, because a hash is checked or the format has checksums.
        self.verified = known_digits(self.path) is not None
        self.entries = {}
        self.facts = {}

    def read(self, keys):
        """Yields (key, float32 array) for `keys`. Raises KeyError for a missing key, ValueError for damage or NaN."""
        keys = list(keys)
        megabytes = {key: 4e-6 * math.prod(self.entries[key].shape) for key in keys if key in self.entries}
        progress = Progress(sum(megabytes.values()), "MB", "MB", title=f"Reading {self.path}")
        with contextlib.ExitStack() as stack:
            with refusing_damage(self.path):
                source = stack.enter_context(self._open())
            for key in progress.over(keys, lambda key: megabytes[key]):
                if key not in self.entries:
                    raise KeyError(f"{self.path!r} does not contain {key!r}")
                with refusing_damage(self.path), np.errstate(over="ignore"):
                    array = np.asarray(self._read(source, key), "float32")
                wrong = array.size - np.count_nonzero(np.isfinite(array))
                if wrong:
                    raise refuse(self.path, f"{key!r} holds {wrong} NaN or infinite numbers")
                largest = array.flat[np.abs(array).argmax()] if array.size and not self.verified else 0
                if abs(largest) > LARGEST:
                    raise refuse(
                        self.path,
                        f"{key!r} holds {largest:g}, too large for a weight, so the file is probably damaged. If not, "
                        f"pass the file's SHA-256 as sha256= or in a file {os.path.basename(self.path)}.sha256",
                    )
                yield key, array

    def _open(self):
        return contextlib.nullcontext()

    def _read(self, source, key):
        raise NotImplementedError


class RefusedError(ValueError):
    """A file cannot be used. The message contains the reason."""


def refuse(path, what):
    """Returns the error for a file that cannot be read. `what` is the reason, as text."""
    return RefusedError(f"Cannot read weights from {os.fsdecode(path)!r}: {what}.")


def imported(path, package, name):
    """Imports the package that reads the file `path`. Error messages call the package by its usual name, `name`."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"Reading {path!r} needs {name}, which cannot be imported. Install {package}, whichever backend Keras "
            f"uses, or convert the file to .safetensors where {name} is installed."
        ) from error


@contextlib.contextmanager
def refusing_damage(path, what=None, also=()):
    """Converts errors in a `with` block to a RefusedError.

    Memory and disk errors are converted only if `also` contains their class.
    """
    try:
        yield
    except RefusedError:
        raise
    # If contents are damaged, libraries raise errors of any class without an errno. If an offset is damaged, the errno
    # is EINVAL.
    except Exception as error:
        of_disk = isinstance(error, OSError) and error.errno not in (None, 0, errno.EINVAL)
        if (of_disk or isinstance(error, MemoryError)) and not isinstance(error, also):
            raise
        said = f"it is truncated or damaged ({error}); {_AGAIN}" if what is None else f"{what} ({error})"
        raise refuse(path, said) from error


def checked(path):
    """Returns the path of a file. Raises an error if it is not a regular file, or its hash is not the known hash."""
    path = os.fsdecode(path)
    if not os.path.exists(path):
        published = ". To load the published checkpoint of this name, use `from_pretrained`" if path in ROWS else ""
        raise FileNotFoundError(f"Expected a weights file. Received: {describe_path(path)}{published}")
    # Opening a pipe would block forever.
    if not os.path.isfile(path):
        raise refuse(path, "it is not a regular file")
    if not os.path.getsize(path):
        raise refuse(path, f"it is empty (0 bytes); {_AGAIN}")
    check_is_no_stand_in(path)
    digits = known_digits(path)
    if digits is not None:
        _check_digits(path, digits)
    return path


def known_digits(path):
    """Returns the known hash of a file: a SHA-256, its first digits, or a Git hash of 40 digits; None if unknown."""
    name = os.path.basename(path)
    if (digest := digest_in(f"{path}.sha256", name)) is not None:
        return digest
    return _blob_of_hub(os.path.join(os.getcwd(), path)) or SHA256_PREFIXES.get(name)


def _blob_of_hub(path):
    """Returns the SHA-256 or Git hash of a file in Hugging Face's cache. The hash is the file's name in blobs/."""
    # The file in the cache is a link to its blob, and the blob may be a link to a file with another name.
    while True:
        folder, blob = os.path.split(path)
        if os.path.basename(folder) == "blobs" and re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", blob):
            return blob
        if not os.path.islink(path):
            return None
        path = os.path.join(folder, os.readlink(path))


def check_is_no_stand_in(path):
    """Raises an error if a file is a Git LFS pointer, or a web page that a server sent instead of the file."""
    with open(path, "rb") as file:
        head = file.read(512).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        raise refuse(path, "it is a Git LFS pointer in place of the file; run `git lfs pull` in its repository")
    if head.startswith((b"<!doctype html", b"<html", b"<?xml")):
        raise refuse(path, "it is a web page, which a server sent in place of the file, such as a login form")


def read_json(path):
    """Returns the JSON object in a file as a dict."""
    if os.path.getsize(path) > _LARGEST_TEXT:
        raise refuse(path, f"it is larger than {_LARGEST_TEXT:,} bytes, expected a JSON file of settings or names")
    with refusing_damage(path, "it is not a JSON file"):
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not isinstance(found, dict):
            raise refuse(path, f"it holds a JSON {type(found).__name__}, expected an object")
    return found


def sha256(path):
    """Returns the SHA-256 of a file as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path, expected):
    """Raises an error if the SHA-256 of a file is not `expected`, 64 hexadecimal digits in upper or lower case."""
    if not isinstance(expected, str) or not re.fullmatch(_DIGEST, expected):
        raise arguments.invalid("sha256", "64 hexadecimal digits", expected)
    if os.path.isdir(path):
        raise arguments.invalid("sha256", "None for a folder (write each file's SHA-256 to <file>.sha256)", expected)
    _check_digits(path, expected)


def _check_digits(path, digits):
    kind, found = ("Git hash", _git_hash(path)) if len(digits) == 40 else ("SHA-256", sha256(path))
    if not found.startswith(digits.lower()):
        raise refuse(path, f"it is damaged or another file: its {kind} is {found}, expected {digits.lower()}; {_AGAIN}")


def _git_hash(path):
    start = b"blob %d\0" % os.path.getsize(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.sha1(start, usedforsecurity=False)).hexdigest()


def digest_in(sidecar, name):
    """Returns the SHA-256 of the file `name` from the file `sidecar`, or None if `sidecar` does not exist.

    `sidecar` is in the format of `sha256sum`.
    """
    if not os.path.exists(sidecar):
        return None
    if not os.path.isfile(sidecar):
        raise refuse(sidecar, "it is not a regular file")
    with refusing_damage(sidecar, "it is not a text file"), open(sidecar, encoding="utf-8") as file:
        # sha256sum writes a star before the names of binary files. A digest without a name is also accepted.
        pattern = rf"^[ \t]*({_DIGEST})(?:[ \t]+\*?{re.escape(name)})?[ \t]*$"
        found = re.findall(pattern, file.read(_LARGEST_TEXT), re.MULTILINE)
    if len(found) != 1:
        raise refuse(
            sidecar, f"it does not contain one SHA-256 of {name!r}. Expected 64 hexadecimal digits, spaces and the name"
        )
    return found[0]
