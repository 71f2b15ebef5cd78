"""Writing files so that they appear whole or not at all."""

import contextlib
import os
from pathlib import Path


@contextlib.contextmanager
def replacing(path):
    """Gives a path beside `path` to write to, and renames it to `path` when the block ends without an error.

    A full disk or an error leaves what was at `path` as it was, and nothing beside it.

    Args:
        path: Path of the file to write; an existing file is replaced.

    Raises:
        FileNotFoundError: If the folder of `path` does not exist.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"Cannot write {str(path)!r}: there is no folder {str(path.parent)!r}.")
    # It ends as `path` does, since Keras chooses a format by that.
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
