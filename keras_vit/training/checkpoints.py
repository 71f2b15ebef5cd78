"""Reads and writes the checkpoint files of a run."""

import contextlib
import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_vit.distribution.processes import process_id, summed, to_numpy, torch_group
from keras_vit.files import only_process, replacing
from keras_vit.weights.read.bounds import open_archive

_FORMAT = "keras_vit training checkpoint, version 2"
OTHER_FOLDER = "Give another folder, or delete '{}' to start over."


class Checkpoint(NamedTuple):
    """The contents of a checkpoint file. `facts` is a dict of JSON values, and `arrays` is a dict {name: array}."""

    path: Path
    facts: dict
    arrays: dict


class CheckpointSlots:
    """A folder with the last `slots` checkpoints of a run. If writing fails, no partial .npz file is left."""

    def __init__(self, folder, slots=3):
        self.folder = Path(folder)
        self.slots = slots

    @contextlib.contextmanager
    def opened(self):
        """Creates and locks the folder for a `with` block, and removes unfinished files of killed processes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Only process 0 of a run writes to the folder.
        if process_id() > 0:
            yield
            return
        with only_process(self.folder / ".lock") as locked:
            # If locks are not supported, keep all drafts, because another process may be writing them.
            for draft in self.folder.glob(".step_*.npz.*.draft") if locked else ():
                shutil.rmtree(draft, ignore_errors=True)
            yield

    def paths(self):
        """Returns the checkpoint files, oldest first."""
        return sorted(path for path in self.folder.glob("step_*.npz") if path.is_file())

    def save(self, step, facts, arrays):
        """Writes the checkpoint of a step, keeps the newest `slots` checkpoints, and returns the new path."""
        path = self.folder / f"step_{step:012d}.npz"
        header = json.dumps({"format": _FORMAT, "arrays": sorted(arrays), "facts": facts}).encode()
        arrays = {f"arrays/{name}": array for name, array in arrays.items()}
        with replacing(path) as draft, open(draft, "wb") as file:
            np.savez(file, header=np.frombuffer(header, "uint8"), **arrays)
            file.flush()
            os.fsync(file.fileno())
        others = [other for other in self.paths() if other != path]
        for old in others[: max(0, len(others) + 1 - self.slots)]:
            old.unlink(missing_ok=True)
        return path

    def newest(self):
        """Returns the newest undamaged checkpoint, or None. Renames damaged checkpoints and prints a notice."""
        for path in reversed(self.paths()):
            # If the file cannot be opened, raise the error, because a missing permission does not mean damage.
            with open(path, "rb") as file:
                try:
                    return _read(path, file)
                except (MemoryError, _OtherVersionError):
                    raise
                # If a file is damaged, zipfile and NumPy raise errors of nearly any class.
                except Exception as error:
                    if isinstance(error, OSError) and error.errno != errno.EINVAL:
                        raise
                    reason = error
            # Rename the damaged file. `save` keeps the files with the highest steps, so it would keep the damaged file
            # and delete new checkpoints of earlier steps.
            aside = path.rename(f"{path}.damaged")
            print(f"The checkpoint {str(path)!r} is damaged ({reason}); it is now {aside.name!r}. Using an older one.")
        return None


class _OtherVersionError(ValueError):
    pass


def _read(path, file):
    with open_archive(path), np.load(file, allow_pickle=False) as archive:
        members = dict(archive)
    header = json.loads(members["header"].tobytes())
    if header["format"] != _FORMAT:
        raise _OtherVersionError(
            f"Expected a {_FORMAT}. Received: {str(path)!r}, a {header['format']}. " + OTHER_FOLDER.format(path.parent)
        )
    arrays = {name.removeprefix("arrays/"): array for name, array in members.items() if name.startswith("arrays/")}
    # The checksums in the zip archive do not protect its list of files. If this list is damaged, an array may be
    # missing, so compare the names with the header.
    if sorted(arrays) != header.get("arrays", sorted(arrays)):
        raise ValueError("arrays are missing")
    return Checkpoint(path, header["facts"], arrays)


def model_arrays(model):
    """Returns {"group/number": value} for the variables of a model, its optimizer and its metrics."""
    arrays = {}
    for group, variables in _variables(model).items():
        # With several PyTorch processes, the metrics of each process contain only the sums over its own images. Add up
        # the sums of all processes.
        in_parts = group == "metrics" and torch_group()
        values = map(ops.convert_to_numpy, summed(variables)) if in_parts else map(to_numpy, variables)
        arrays |= {f"{group}/{i:05d}": storable(value) for i, value in enumerate(values)}
    return arrays


def signature(model):
    """Returns the paths, shapes and dtypes of a model's variables, by group."""
    # Remove the numbers that Keras appends to the names of unnamed layers, because they differ between processes.
    numbers = re.compile(r"_[0-9]+(?=[_/]|$)")
    return {
        group: [f"{numbers.sub('', v.path)} {list(v.shape)} {v.dtype}" for v in variables]
        for group, variables in _variables(model).items()
    }


def check_model(model, slot):
    """Builds the optimizer. Raises an error if the checkpoint `slot` is of another model or optimizer."""
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    here = signature(model)
    for group in ("model", "optimizer"):
        saved = slot.facts["variables"][group]
        pairs = zip(saved, here[group], strict=False)
        # On TensorFlow, a path gets a prefix if the optimizer is built in a train step, for example with loss scaling.
        # Therefore, accept two paths if the longer path ends with the shorter path.
        unlike = (f"{a} instead of {b}" for a, b in pairs if not (a.endswith(b) or b.endswith(a)))
        different = next(unlike, None)
        if different is None and len(saved) != len(here[group]):
            different = f"{len(saved)} variables instead of {len(here[group])}"
        if different is not None:
            advice = OTHER_FOLDER.format(slot.path.parent)
            raise ValueError(f"{str(slot.path)!r} contains another {group}: {different}. {advice}")


def assign(model, arrays, facts, *groups):
    """Restores the variables of the given groups from the arrays and facts of a checkpoint."""
    variables = _variables(model)
    for group in groups:
        if group == "metrics" and facts["variables"][group] != signature(model)[group]:
            print("The model has other metrics than the checkpoint. The metrics of this epoch start at this batch.")
            model.reset_metrics()
            continue
        for i, variable in enumerate(variables[group]):
            # `model_arrays` adds up the metrics of all PyTorch processes. Therefore, process 0 gets the saved sums, and
            # the metrics of all other processes start at 0.
            value = arrays[f"{group}/{i:05d}"]
            in_process_0 = group == "metrics" and torch_group() and process_id()
            variable.assign(np.zeros_like(value) if in_process_0 else value)


def _variables(model):
    optimizer = model.optimizer.variables if model.optimizer is not None else []
    return {"model": model.variables, "optimizer": optimizer, "metrics": model.metrics_variables}


def storable(array):
    """Returns the array. If NumPy cannot write its dtype (such as bfloat16), returns the same values in float32."""
    return array if array.dtype.kind in "biuf" else array.astype("float32")


def generator_states():
    """Returns {name: state} of PyTorch's random generators, which dropout without a seed uses; {} if not PyTorch."""
    if keras.backend.backend() != "torch":
        return {}
    import torch  # noqa: TID251  Keras cannot read PyTorch's generators.

    states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    return {f"torch/{i:05d}": state.numpy() for i, state in enumerate(states)}


def set_generator_states(states):
    """Restores the states that `generator_states` returned. Does nothing on other backends than PyTorch."""
    names = sorted(name for name in states if name.startswith("torch/"))
    if names and keras.backend.backend() == "torch":
        import torch  # noqa: TID251

        first, *others = (torch.from_numpy(states[name]) for name in names)
        torch.set_rng_state(first)
        torch.cuda.set_rng_state_all(others[: torch.cuda.device_count()])
