import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_vit.files import remove_abandoned, replacing

_FORMAT = "keras_vit training checkpoint, version 1"


class Slot(NamedTuple):
    """What one file holds.

    Attributes:
        path: Path of the file.
        facts: Dict that was given to `CheckpointSlots.save`, through JSON.
        arrays: Dict from names to NumPy arrays.
    """

    path: Path
    facts: dict
    arrays: dict


class CheckpointSlots:
    """A folder that keeps the last few checkpoints, each in a file that is there whole or not at all.

    A file is written beside its name, brought to the disk, and then renamed, so a process killed at any instant leaves
    the earlier files as they were. Each carries a SHA-256 of all it holds; one that does not match is passed over for
    the one before. Files are .npz archives of plain arrays, and nothing in them is unpickled.

    Args:
        folder: Path of the folder; it is made when missing.
        slots: Number of files to keep, at least 1.

    Raises:
        ValueError: If `slots` is not a positive int.

    Example:

    >>> import tempfile
    >>> slots = CheckpointSlots(tempfile.mkdtemp(), slots=2)
    >>> for step in (10, 20, 30):
    ...     path = slots.save(step, {"step": step}, {"w": np.full(3, step)})
    >>> [path.name for path in slots.paths()]
    ['step_000000000020.npz', 'step_000000000030.npz']
    >>> slots.newest().facts
    {'step': 30}
    """

    def __init__(self, folder, slots=3):
        if not isinstance(slots, int) or slots < 1:
            raise ValueError(f"Expected `slots` to be a positive int. Received: slots={slots!r}")
        self.folder = Path(folder)
        self.slots = slots

    def open(self):
        """Makes the folder, and removes what a process killed while it saved has left there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_abandoned(self.folder, "step_*.npz", alone=True)

    def paths(self):
        """The files of the folder, oldest first."""
        return sorted(self.folder.glob("step_*.npz"))

    def save(self, step, facts, arrays):
        """Writes a checkpoint, then removes those that are one too many.

        Args:
            step: Int, by which the files are ordered. A file of the same step is replaced.
            facts: Dict that JSON can hold.
            arrays: Dict from names to NumPy arrays of numbers.

        Returns:
            The path of the file.

        Raises:
            OSError: If the file cannot be written; the earlier ones are as they were.
        """
        path = self.folder / f"step_{step:012d}.npz"
        header = json.dumps({"format": _FORMAT, "facts": facts}).encode()
        members = {
            "header": np.frombuffer(header, "uint8"),
            "sha256": np.frombuffer(_digest(header, arrays), "uint8"),
            **{f"arrays/{name}": array for name, array in arrays.items()},
        }
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **members)
            file.flush()
            os.fsync(file.fileno())
        self._sync_folder()
        for old in self.paths()[: -self.slots]:
            old.unlink(missing_ok=True)
        return path

    def newest(self):
        """Reads the newest file that is whole, and prints a notice for each damaged one before it.

        Returns:
            A Slot, or None where there is no whole file.
        """
        for path in reversed(self.paths()):
            try:
                return _read(path)
            # Flipped bits make zipfile and NumPy raise nearly anything.
            except Exception as error:
                print(f"The checkpoint {str(path)!r} is damaged ({error}). Falling back to the one before it.")
        return None

    def _sync_folder(self):
        """Brings the new name to the disk, without which a power cut could take it back."""
        if os.name == "nt":
            # Windows opens no folders.
            return
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _read(path):
    with np.load(path, allow_pickle=False) as archive:
        members = {name: archive[name] for name in archive.files}
    header, digest = members.pop("header").tobytes(), members.pop("sha256").tobytes()
    arrays = {name.removeprefix("arrays/"): array for name, array in members.items()}
    if _digest(header, arrays) != digest:
        raise ValueError("its SHA-256 does not match what it holds")
    header = json.loads(header)
    if header["format"] != _FORMAT:
        raise ValueError(f"expected a {_FORMAT}, received {header['format']!r}")
    return Slot(path, header["facts"], arrays)


def _digest(header, arrays):
    """The SHA-256 of the header and of each array's name, type, shape and data."""
    digest = hashlib.sha256(header)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"\n{name} {array.dtype.str} {np.shape(arrays[name])}\n".encode())
        digest.update(memoryview(array.reshape(-1).view("uint8")))
    return digest.digest()
