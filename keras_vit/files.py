"""Writing files and folders so that they appear whole or not at all."""

import contextlib
import errno
import glob
import os
import shutil
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:
    # Windows has no locks for folders.
    fcntl = None

# No space is left, or none that this user or process may use.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def replacing(path):
    """Yields a path to write to, and renames it to `path` when the block ends without an error.

    Otherwise the file at `path` is unchanged. The draft of a killed process is removed by the next one that writes to
    `path`.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"Cannot write {str(path)!r}: there is no folder {str(path.parent)!r}.")
    with draft_folder(path) as folder:
        # It has the same name, since Keras chooses a format by the ending.
        yield folder / path.name
        os.replace(folder / path.name, path)


@contextlib.contextmanager
def draft_folder(path):
    """Yields a new hidden folder beside `path`, in which to write it, and removes the folder in the end."""
    path = Path(path)
    remove_abandoned(path.parent, glob.escape(path.name))
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".draft", dir=path.parent))
        lock = _lock(folder, wait=True)
        # Before it was locked another process may have removed it as abandoned.
        if folder.is_dir():
            break
        _unlock(lock)
    try:
        yield folder
    except OSError as error:
        # Python names a file only if it fails to open, and not if the disk is full.
        if error.filename is not None or error.errno not in _FULL:
            raise
        raise OSError(error.errno, f"Cannot write it, {os.strerror(error.errno).lower()}", str(path)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _unlock(lock)


def put_folder(draft, path):
    """Renames a folder in a draft folder to `path`, whose old contents go with the draft folder."""
    replaced = _replaced(draft.parent, path)
    if path.exists():
        os.rename(path, replaced)
    try:
        os.rename(draft, path)
    except OSError:
        if replaced.exists():
            os.rename(replaced, path)
        raise


def _replaced(folder, path):
    """The place in a draft folder of the old contents of `path`, until the new ones are there."""
    return folder / f"{path.name}.replaced"


def remove_abandoned(folder, pattern, alone=False):
    """Removes the draft folders of ended processes for names that match a glob pattern.

    Each process holds the system's lock on its own, which ends with it; this works across containers. Without locks all
    stay, unless the caller knows that it is `alone` in writing there. Most network folders share no locks between
    machines: two that write the same name at the same time get in each other's way.
    """
    for draft in Path(folder).glob(f".{pattern}.*.draft"):
        lock = _lock(draft, wait=False)
        path = draft.with_name(draft.name[1:].rsplit(".", 2)[0])
        # A process that was killed between two renames left the only copies of the old and the new contents there.
        halfway = _replaced(draft, path).exists() and not path.exists()
        if (lock is not None or alone) and not halfway:
            shutil.rmtree(draft, ignore_errors=True)
        _unlock(lock)


def _lock(folder, wait):
    """A descriptor that holds the lock on a folder; None if another process holds it, or there are no locks."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _unlock(descriptor):
    if descriptor is not None:
        os.close(descriptor)
