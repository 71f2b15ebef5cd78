"""Downloads published files with Keras, and checks their hashes."""

import contextlib
import os
from pathlib import Path

import keras

from keras_vit.files import draft_folder, replacing
from keras_vit.weights.read.file import check_is_no_stand_in, digest_in, sha256


class DownloadError(OSError):
    """A download failed. The file at the target path is unchanged."""


def download(url, path, *, sha256_prefix=None, pin, check):
    """Downloads a file to a temporary name, checks its hash, and moves it to `path`.

    The docstring of `confirm` explains `sha256_prefix`, `pin` and `check`. If several processes download the same file,
    the first one to finish moves its file. The others check the moved file, and remove their own.
    """
    path = Path(path)
    known = _known(sha256_prefix, pin)
    with draft_folder(path) as folder:
        try:
            draft = keras.utils.get_file(path.name, url, cache_dir=folder, cache_subdir="")
            digest = _checked(draft, known, check)
        # If the network fails, `get_file` raises the class Exception itself.
        except Exception as error:
            reason = str(error).replace(str(folder / path.name), str(path))
            raise DownloadError(f"Cannot download {url}: {reason}.") from None
        if not path.exists():
            os.replace(draft, path)
            _remember(pin, digest, known)
            return
    confirm(path, sha256_prefix=sha256_prefix, pin=pin, check=check)


def confirm(path, *, sha256_prefix=None, pin, check):
    """Raises a ValueError if a file's SHA-256 is not the known hash. If no hash is known, calls `check(path)`.

    `sha256_prefix` are the first digits of the SHA-256 in the published name, or None. The first successful call writes
    the SHA-256 to the file `pin`, in the format of `sha256sum`, and later calls compare with it.
    """
    known = _known(sha256_prefix, pin)
    try:
        digest = _checked(path, known, check)
    except ValueError as error:
        raise ValueError(f"{error} {str(path)!r} is damaged or another file. Delete it to download it again.") from None
    _remember(pin, digest, known)


def _known(sha256_prefix, pin):
    """Returns {origin of a known hash: its digits}. The digits may be only the first ones of the SHA-256."""
    pinned = f"pinned in {str(pin)!r} (delete that file if the new hash is right)"
    known = {"in the published name": sha256_prefix, pinned: digest_in(pin, Path(pin).stem)}
    return {origin: digits.lower() for origin, digits in known.items() if digits}


def _checked(path, known, check):
    """Returns the SHA-256 of a file; raises if a check fails."""
    check_is_no_stand_in(path)
    digest = sha256(path)
    for origin, digits in known.items():
        if not digest.startswith(digits):
            raise ValueError(
                f"Expected {str(path)!r} with the SHA-256 {digits}, which is {origin}. Received: {digest}."
            )
    if not known:
        check(path)
    return digest


def _remember(pin, digest, known):
    """Writes the hash to the file `pin` if the full hash was not known, and if the folder is writable."""
    if digest not in known.values():
        with contextlib.suppress(OSError), replacing(pin) as temporary:
            temporary.write_text(f"{digest}  {Path(pin).stem}\n")
