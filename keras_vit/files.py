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
    # Windows has other locks, and none for folders.
    fcntl = None

# No space is left, or none that this user or process may take.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def replacing(path):
    """Gives a path to write to, and renames it to `path` when the block ends without an error.

    A full disk or an error leaves what was at `path` as it was, and nothing beside it; of a process that is killed the
    next one that writes to `path` removes what is left.

    Args:
        path: Path of the file to write; an existing file is replaced.

    Raises:
        FileNotFoundError: If the folder of `path` does not exist.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"Cannot write {str(path)!r}: there is no folder {str(path.parent)!r}.")
    with draft_folder(path) as folder:
        # Of the same name, since Keras chooses a format by how it ends.
        yield folder / path.name
        os.replace(folder / path.name, path)


@contextlib.contextmanager
def draft_folder(path):
    """Gives a new hidden folder beside `path` to write to, and removes it in the end.

    A process that is killed leaves it there, so this first removes those for `path` that are nobody's any more.

    Args:
        path: Path of the file or folder that is to be; its own folder exists.

    Example:

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "new.txt")
    >>> with draft_folder(path) as folder:
    ...     _ = (folder / "new.txt").write_text("whole")
    ...     _ = (folder / "new.txt").rename(path)
    >>> [file.name for file in path.parent.iterdir()]
    ['new.txt']
    """
    path = Path(path)
    remove_abandoned(path.parent, glob.escape(path.name))
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".draft", dir=path.parent))
        lock = _lock(folder, wait=True)
        # Before it was locked another process may have found it to be nobody's.
        if folder.is_dir():
            break
        _unlock(lock)
    try:
        yield folder
    except OSError as error:
        # That the disk is full is said of no file: Python names one only where it opens it.
        if error.filename is not None or error.errno not in FULL:
            raise
        raise OSError(error.errno, f"Cannot write it, {os.strerror(error.errno).lower()}", str(path)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _unlock(lock)


def put_folder(draft, path):
    """Renames a folder within a draft folder to `path`, and what is there into the draft folder.

    Args:
        draft: Path of the new folder, in a draft folder.
        path: Path that it gets.
    """
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
    """Where in a draft folder is what was at `path`, until the new one is there."""
    return folder / f"{path.name}.replaced"


def remove_abandoned(folder, pattern, alone=False):
    """Removes the draft folders of processes that are no more.

    Each process holds the system's lock on its own, which ends with it, however it ends, and also tells of processes in
    other containers. Most network folders tell nothing of other machines: two that write the same name there at the
    same time get in each other's way. Without locks all stay.

    Args:
        folder: Path of the folder that they are in.
        pattern: Glob pattern of the names that they are drafts of.
        alone: Bool, whether the caller knows that no other process writes there, so that no lock is asked for.
    """
    for draft in Path(folder).glob(f".{pattern}.*.draft"):
        lock = _lock(draft, wait=False)
        path = draft.with_name(draft.name[1:].rsplit(".", 2)[0])
        # Killed between two renames, it holds all that there is of the old and the new.
        halfway = _replaced(draft, path).exists() and not path.exists()
        if (lock is not None or alone) and not halfway:
            shutil.rmtree(draft, ignore_errors=True)
        _unlock(lock)


def _lock(folder, wait):
    """A descriptor that holds the lock on a folder; None where another has it, or there are no locks."""
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
