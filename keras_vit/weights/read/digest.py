"""SHA-256 digests, for the formats that cannot tell by themselves that a bit was flipped."""

import hashlib
import os
import re

from keras_vit.weights.read.file import refuse, refusing_damage


def sha256(path):
    """The SHA-256 of a file, in 64 hexadecimal digits.

    Args:
        path: Path of the file, which is read in parts.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path, expected):
    """Refuses a file that has another SHA-256.

    Args:
        path: Path of the file.
        expected: String, 64 hexadecimal digits in either case.

    Raises:
        ValueError: If the digests differ, or `expected` is no digest.
    """
    if not (isinstance(expected, str) and re.fullmatch(r"[0-9a-fA-F]{64}", expected)):
        raise ValueError(
            "Invalid value received for argument `expected`. "
            f"Expected a SHA-256, 64 hexadecimal digits. Received: {expected!r}"
        )
    found = sha256(path)
    if found != expected.lower():
        raise refuse(path, f"it is damaged or another file: its SHA-256 is {found}, expected {expected.lower()}")


def check_sidecar(path):
    """Checks a file against `<path>.sha256`, as `sha256sum` writes it, if that lies beside it.

    Args:
        path: Path of the file.

    Raises:
        ValueError: If the digests differ, or the sidecar holds none for this file.
    """
    path = os.fsdecode(path)
    sidecar, name = f"{path}.sha256", os.path.basename(path)
    if not os.path.exists(sidecar):
        return
    with refusing_damage(sidecar, "it is no text file"), open(sidecar, encoding="utf-8") as file:
        lines = [line.split(maxsplit=1) for line in file if line.strip()]
    # A star before the name says that the file was read as binary. A digest without a name is of this file.
    digests = [words[0] for words in lines if words[1:] in ([], [f"{name}\n"], [name], [f"*{name}\n"], [f"*{name}"])]
    if len(digests) != 1 or not re.fullmatch(r"[0-9a-fA-F]{64}", digests[0]):
        raise refuse(sidecar, f"it does not give one SHA-256 of {name!r}, as in 64 hexadecimal digits, spaces, name")
    check_sha256(path, digests[0])
