"""Weights spread over several files, with an index that says which array is where."""

import itertools
import os
from pathlib import PureWindowsPath

from keras_vit.weights.read.digest import check_sidecar
from keras_vit.weights.read.file import WeightsFile, read_json, refuse
from keras_vit.weights.read.pth import PthFile
from keras_vit.weights.read.safetensors import SafetensorsFile

_READERS = {".safetensors": SafetensorsFile, ".bin": PthFile}


class ShardedFile(WeightsFile):
    """The files that an index, as in model.safetensors.index.json, names.

    Args:
        path: Path of the index. The files lie in its folder.

    Attributes:
        entries: Dict from the keys of all files to their entries.
        facts: What the files say beside their arrays.

    Raises:
        FileNotFoundError: If one of the files is not there.
        ValueError: If the index or a file is damaged, or they contradict each other.
    """

    def __init__(self, path):
        super().__init__(path)
        self._map = self._read_map()
        self._shards = {}
        for name in dict.fromkeys(self._map.values()):
            self._shards[name] = self._open_shard(name)
        for key, name in self._map.items():
            if key not in self._shards[name].entries:
                raise refuse(self.path, f"it says that {key!r} is in {name!r}, which does not hold it")
            self.entries[key] = self._shards[name].entries[key]
        for name, shard in self._shards.items():
            for key in shard.entries:
                if self._map.get(key) != name:
                    raise refuse(self.path, f"{name!r} holds {key!r}, and the index has it in {self._map.get(key)!r}")
            self.container = shard.container
            self.facts.update(shard.facts)

    def _read_map(self):
        found = read_json(self.path).get("weight_map")
        if not (isinstance(found, dict) and found):
            raise refuse(self.path, "it is no index of weights (it has no weight_map)")
        for key, name in found.items():
            if isinstance(name, list) or str(name).endswith(".h5"):
                raise refuse(
                    self.path,
                    "it is the index of sharded Keras weights, which are not read here; load them with "
                    "model.load_weights, and save them as one .weights.h5 file",
                )
            # A Windows path takes both kinds of slashes, and drives, for what they are.
            if not isinstance(name, str) or PureWindowsPath(name).name != name or name in ("", "..") or "\0" in name:
                raise refuse(self.path, f"it says that {key!r} is in {name!r}, expected the name of a file beside it")
        return found

    def _open_shard(self, name):
        path = os.path.join(os.path.dirname(self.path), name)
        reader = _READERS.get(os.path.splitext(name)[1])
        if reader is None:
            raise refuse(self.path, f"it names the file {name!r}, expected {' or '.join(_READERS)}")
        if not os.path.exists(path):
            raise FileNotFoundError(f"{self.path!r} names the file {name!r}, which is not beside it.")
        check_sidecar(path)
        return reader(path)

    def read(self, keys):
        for name, some in itertools.groupby(keys, self._map.__getitem__):
            yield from self._shards[name].read(some)
