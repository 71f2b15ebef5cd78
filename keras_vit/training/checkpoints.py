import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_vit.files import remove_abandoned, replacing

_FORMAT = "keras_vit training checkpoint, version 1"


class Slot(NamedTuple):
    """The contents of one checkpoint: `facts` is what JSON holds, `arrays` is by name."""

    path: Path
    facts: dict
    arrays: dict


class CheckpointSlots:
    """A folder with the last few checkpoints, each a whole .npz file or none.

    A file is written beside its name, flushed to the disk and then renamed, so a killed process leaves the earlier
    files as they were. The archive has a CRC-32 of each array, so a damaged file is found when it is read. Nothing is
    unpickled.
    """

    def __init__(self, folder, slots=3):
        if not isinstance(slots, int) or slots < 1:
            raise ValueError(f"Expected `slots` to be a positive int. Received: slots={slots!r}")
        self.folder = Path(folder)
        self.slots = slots

    def open(self):
        """Makes the folder, and removes the drafts of killed processes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_abandoned(self.folder, "step_*.npz", alone=True)

    def paths(self):
        """The files of the folder, oldest first."""
        return sorted(self.folder.glob("step_*.npz"))

    def save(self, step, facts, arrays):
        """Writes the checkpoint of a step, removes the oldest files, and returns the new file's path."""
        path = self.folder / f"step_{step:012d}.npz"
        header = np.frombuffer(json.dumps({"format": _FORMAT, "facts": facts}).encode(), "uint8")
        with replacing(path) as draft, open(draft, "wb") as file:
            np.savez(file, header=header, **{f"arrays/{name}": array for name, array in arrays.items()})
            file.flush()
            os.fsync(file.fileno())
        for old in self.paths()[: -self.slots]:
            old.unlink(missing_ok=True)
        return path

    def newest(self):
        """Reads the newest whole file into a `Slot`, and prints a notice for each damaged one; None without files."""
        for path in reversed(self.paths()):
            try:
                return _read(path)
            # Flipped bits make zipfile and NumPy raise nearly anything.
            except Exception as error:
                print(f"The checkpoint {str(path)!r} is damaged ({error}). Falling back to the one before it.")
        return None


def _read(path):
    with np.load(path, allow_pickle=False) as archive:
        members = dict(archive)
    header = json.loads(members["header"].tobytes())
    if header["format"] != _FORMAT:
        raise ValueError(f"expected a {_FORMAT}, received {header['format']!r}")
    arrays = {name.removeprefix("arrays/"): array for name, array in members.items() if name.startswith("arrays/")}
    return Slot(path, header["facts"], arrays)
