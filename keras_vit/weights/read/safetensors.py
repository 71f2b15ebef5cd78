"""Reads .safetensors files. The format has no checksums, but files of this package have a SHA-256, which is checked."""

import hashlib
import json

from safetensors import safe_open

from keras_vit.weights.read.file import Entry, WeightsFile, refuse, refusing_damage

# The metadata keys under which keras_vit writes its facts and the SHA-256 of the contents.
FACTS = "keras_vit"
DIGEST = "keras_vit_sha256"

_FLOATS = ("F16", "BF16", "F32", "F64")


class SafetensorsFile(WeightsFile):
    """A .safetensors file of float arrays. `facts` is its metadata.

    In the file, the value of the key "keras_vit" is JSON text. In `facts`, it is the parsed value.
    """

    container = "safetensors"

    def __init__(self, path):
        super().__init__(path)
        with refusing_damage(self.path), safe_open(self.path, framework="numpy") as file:
            self.facts = file.metadata() or {}
            arrays = {key: file.get_slice(key) for key in list(file.keys())}
            self.entries = {key: Entry(tuple(array.get_shape()), array.get_dtype()) for key, array in arrays.items()}
        if not self.entries:
            raise refuse(self.path, "it holds no arrays")
        for key, entry in self.entries.items():
            # Arrays of integers, such as the position numbers in CLIP's files, get an entry but are never read.
            if entry.dtype not in (*_FLOATS, "I64"):
                raise self._no_float(key)
        # Files that keras_vit wrote have both keys. If only one of the keys is there, the file is damaged.
        if DIGEST in self.facts or FACTS in self.facts:
            with refusing_damage(self.path, "its header is damaged"):
                found, said = contents_digest(self.path), self.facts.pop(DIGEST)
                self.facts[FACTS] = json.loads(self.facts[FACTS])
            if found != said:
                raise refuse(
                    self.path,
                    "it is damaged, or was changed after it was written: the SHA-256 of its contents is "
                    f"{found}, but {said} in its header",
                )
            self.verified = True

    def _read(self, _, key):
        if self.entries[key].dtype not in _FLOATS:
            raise self._no_float(key)
        # Open the file again for each array, because safetensors keeps all arrays of an open file in memory.
        with safe_open(self.path, framework="numpy") as file:
            return file.get_tensor(key)

    def _no_float(self, key):
        dtype = self.entries[key].dtype
        return refuse(self.path, f"{key!r} is of dtype {dtype}, expected floats ({', '.join(_FLOATS)})")


def contents_digest(path):
    """Returns one SHA-256 of a file's header and data. The header is hashed as sorted JSON without the digest."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header["__metadata__"].pop(DIGEST, None)
        spelled = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        return hashlib.file_digest(file, lambda: hashlib.sha256(spelled)).hexdigest()
