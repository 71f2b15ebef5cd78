"""Reads PyTorch files with torch's weights_only loader. No code in the files is run."""

import argparse
import os
import pickle
import re
import zipfile

import numpy as np

from keras_vit.weights.read.bounds import check_pickles, open_archive
from keras_vit.weights.read.file import Entry, WeightsFile, imported, refuse, refusing_damage

# A file may contain state dicts under these keys. The first one found is read: as in timm, averaged weights come first,
# and a teacher comes before a student.
_AVERAGES = ("state_dict_ema", "model_ema", "ema")
_WRAPPERS = (
    *_AVERAGES,
    *("model", "state_dict", "model_state_dict", "net", "module"),
    *("teacher", "target_encoder", "student", "encoder"),
)


class PthFile(WeightsFile):
    """A .pth file with a state dict of float tensors.

    `facts["wrapper"]` is the key of the state dict in the file, or None if the file is only this state dict.
    `facts["others"]` are the keys of other state dicts, which are not read.
    """

    container = "pth"

    def __init__(self, path):
        super().__init__(path)
        found, unread = self._load(), []
        if isinstance(found, dict):
            averages = {name: _average(found[name]) for name in _AVERAGES if name in found}
            unread = [name for name, state in averages.items() if isinstance(found[name], dict) and not state]
            found = {**found, **averages}
        wrapped = [name for name in _WRAPPERS if isinstance(found, dict) and isinstance(found.get(name), dict)]
        self.facts = {"wrapper": wrapped[0] if wrapped else None, "others": [*unread, *wrapped[1:]]}
        self._tensors = found[wrapped[0]] if wrapped else found
        if not isinstance(self._tensors, dict) or not self._tensors:
            raise refuse(self.path, f"it holds a {type(self._tensors).__name__} instead of a state dict")
        for key, tensor in self._tensors.items():
            self.entries[key] = self._entry(key, tensor)

    def _load(self):
        torch = imported(self.path, "torch", "PyTorch")
        with open(self.path, "rb") as file:
            zipped = file.read(2) == b"PK"
            if not zipped:
                file.seek(0)
                # torch's older format begins with five pickles: two numbers, the system, the state and the array keys.
                check_pickles(self.path, file, 5)
        if zipped:
            self._check_archive()
            self.verified = True
        # Many files contain the options of a training run in an argparse.Namespace, which contains no code.
        torch.serialization.add_safe_globals([argparse.Namespace])
        with refusing_damage(self.path):
            try:
                return torch.load(self.path, map_location="cpu", weights_only=True, mmap=zipped)
            except pickle.UnpicklingError as error:
                # Keep only the first reason of torch's message, without its advice on how to load the file anyway.
                found = re.search(r"^.*(?:GLOBAL|WeightsUnpickler error).*?(?=\. |$)", str(error), re.MULTILINE)
                said = found[0].strip("\t .") if found else "torch's weights_only loader refused it"
                raise refuse(
                    self.path,
                    f"it is damaged, or holds other objects than tensors ({said}). These could run code and are never "
                    "read. If you trust the file, save only its state dict",
                ) from error

    def _check_archive(self):
        """Raises an error for a wrong checksum, a pickle that needs too much memory, or a TorchScript program."""
        with open_archive(self.path) as archive:
            damaged = archive.testzip()
            if damaged is not None:
                raise refuse(self.path, f"it is damaged (the checksum of its member {damaged!r} is wrong)")
            for info in archive.infolist():
                # Compare in lower case, because torch ignores the case of member names.
                if info.filename.lower().endswith("data.pkl"):
                    if info.compress_type != zipfile.ZIP_STORED:
                        raise refuse(self.path, f"{info.filename!r} is compressed, which torch never writes")
                    with archive.open(info) as member:
                        check_pickles(self.path, member)
            if any(name.endswith("constants.pkl") for name in archive.namelist()):
                raise refuse(
                    self.path,
                    "it is a TorchScript archive, which contains a program. If you trust it, save its weights first: "
                    "torch.save(torch.jit.load(path, map_location='cpu').state_dict(), new_path)",
                )

    def _entry(self, key, tensor):
        import torch

        if not isinstance(key, str) or not isinstance(tensor, torch.Tensor):
            raise refuse(self.path, f"{key!r} is a {type(tensor).__name__}, expected a tensor with a string as key")
        # List integer arrays, such as the position numbers in CLIP's files, too. Their values are never read.
        number = tensor.is_floating_point() or tensor.dtype == torch.int64
        if not number or tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise refuse(self.path, f"{key!r} is of dtype {tensor.dtype} and {tensor.layout}, expected plain floats")
        # If a tensor's strides are damaged, it can have far more elements than the file has bytes.
        held = tensor.untyped_storage().nbytes()
        if not tensor.numel() * tensor.element_size() <= held <= os.path.getsize(self.path):
            raise refuse(self.path, f"{key!r} of shape {tuple(tensor.shape)} is larger than its data")
        return Entry(tuple(tensor.shape), tensor.dtype)

    def _read(self, _, key):
        import torch

        tensor = self._tensors[key]
        if not tensor.is_floating_point():
            raise refuse(self.path, f"{key!r} is of dtype {tensor.dtype}, expected plain floats")
        array = np.empty(self.entries[key].shape, "float32")
        # Copy, so that no view of the memory-mapped file is returned.
        torch.from_numpy(array).copy_(tensor.detach())
        return array


def _average(found):
    """Returns the state dict of averaged (EMA) weights in `found`, or None if there is none.

    `found` is either this state dict, or a dict that contains it under the key "module", "state_dict" or "shadow".
    """
    import torch

    if isinstance(found, dict):
        inner = (found.get(name) for name in ("module", "state_dict", "shadow"))
        found = next((state for state in inner if isinstance(state, dict)), found)
        # Numbers, such as a count of updates, are not weights.
        found = {key: value for key, value in found.items() if not isinstance(value, (int, float))}
    tensors = isinstance(found, dict) and found and all(isinstance(value, torch.Tensor) for value in found.values())
    return found if tensors else None
