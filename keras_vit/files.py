"""Writes files and folders completely or not at all."""

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path

from keras_vit import arguments

try:
    import fcntl
except ImportError:
    # Windows has no fcntl.
    fcntl = None

# The error numbers of a full disk, a full quota of the user, and a file above the size limit.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def replacing(path):
    """Yields a temporary path. If the `with` block ends without an error, the file written there replaces `path`.

    If `path` is a link, its target is replaced. If `path` is a device or pipe, the contents of the temporary file are
    written to this device or pipe.
    """
    path, target = Path(arguments.path("path", path)), Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"Cannot write {str(path)!r}: there is no folder {str(target.parent)!r}. Create it.")
    if target.is_dir():
        raise IsADirectoryError(f"Cannot write {str(path)!r}: it is a folder. Pass the path of a file.")
    special = target.exists() and not target.is_file()
    # The folder of a device or pipe is often not writable.
    with tempfile.TemporaryDirectory() if special else draft_folder(target) as folder:
        # Keras chooses the format by the suffix, so the temporary file has the name that the caller passed.
        draft = Path(folder, path.name)
        yield draft
        if special:
            with open(draft, "rb") as source, open(target, "wb") as device:
                shutil.copyfileobj(source, device)
        else:
            os.replace(draft, target)


def regular_file(path, expected):
    """Returns `path`; raises FileNotFoundError if it is not a regular file, because reading a pipe could block.

    The message begins with "Expected {expected}".
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"Expected {expected}. Received: {describe_path(path)}")
    return path


def describe_path(path):
    """Returns text for an error message: what `path` is, such as a folder, or that it does not exist."""
    if os.path.exists(path):
        is_file = "a file" if os.path.isfile(path) else "a pipe, a device or a socket"
        return f"{os.fsdecode(path)!r}, which is {'a folder' if os.path.isdir(path) else is_file}"
    start = "" if os.path.isabs(path) else f" in the current folder {os.getcwd()!r}"
    return f"{os.fsdecode(path)!r}, which does not exist{start}"


@contextlib.contextmanager
def draft_folder(path):
    """Yields a new hidden folder next to `path`, for writing the contents of `path`. Removes the folder afterwards."""
    path = Path(path)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".draft", dir=path.parent))
    try:
        yield folder
    except OSError as error:
        # Python's error for a full disk does not contain the file name, so raise an error that contains it.
        if error.filename is not None or error.errno not in _FULL:
            raise
        raise OSError(error.errno, f"Cannot write: {os.strerror(error.errno).lower()}", str(path)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put_folder(draft, path):
    """Moves the folder `draft` to `path`. An old folder at `path` moves into the parent folder of `draft`."""
    replaced = draft.with_name(f"{path.name}.replaced")
    if path.exists():
        os.rename(path, replaced)
    try:
        os.rename(draft, path)
    except OSError:
        if replaced.exists():
            os.rename(replaced, path)
        raise


@contextlib.contextmanager
def only_process(path):
    """Locks the file `path` while the `with` block runs; raises RuntimeError if another process has locked it.

    Yields True, or False if the system does not support locks.
    """
    locked = fcntl is not None
    with open(path, "a+", encoding="ascii") as file:
        try:
            if locked:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise RuntimeError(
                f"Expected a folder that no other process uses. Received: {str(path.parent)!r}, in which process "
                f"{file.read().strip()} trains. Wait until it ends, or pass another folder."
            ) from None
        except OSError:
            # Some network file systems do not support locks.
            locked = False
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield locked
