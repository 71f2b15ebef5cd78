"""Weights in several files: sharded checkpoints and Hugging Face folders."""

import itertools
import os
from pathlib import PureWindowsPath

from keras_vit.weights.read.file import WeightsFile, checked, known_digits, read_json, refuse
from keras_vit.weights.read.pth import PthFile
from keras_vit.weights.read.safetensors import FACTS, SafetensorsFile

_SHARDS = {".safetensors": SafetensorsFile, ".bin": PthFile}


class ShardedFile(WeightsFile):
    """A sharded checkpoint: an index, such as model.safetensors.index.json, and the files that it lists."""

    def __init__(self, path):
        super().__init__(path)
        self._map = self._read_map()
        self._shards = {name: self._open_shard(name) for name in dict.fromkeys(self._map.values())}
        for key, name in self._map.items():
            if key not in self._shards[name].entries:
                raise refuse(self.path, f"it maps {key!r} to {name!r}, and that file does not hold {key!r}")
            self.entries[key] = self._shards[name].entries[key]
        self.verified = all(shard.verified for shard in self._shards.values())
        for name, shard in self._shards.items():
            for key in shard.entries:
                if self._map.get(key) != name:
                    raise refuse(self.path, f"{name!r} holds {key!r}, and the index maps it to {self._map.get(key)!r}")
            self.container = shard.container
            self.facts.update(shard.facts)

    def _read_map(self):
        found = read_json(self.path).get("weight_map")
        if not (isinstance(found, dict) and found):
            raise refuse(self.path, "it is not an index of weights (it has no weight_map)")
        for key, name in found.items():
            # Accept only plain file names. PureWindowsPath recognizes "/", "\\" and drives on every system.
            if not isinstance(name, str) or PureWindowsPath(name).name != name or name in ("", "..") or "\0" in name:
                raise refuse(self.path, f"it maps {key!r} to {name!r}, expected the name of a file in the same folder")
        return found

    def _open_shard(self, name):
        path = os.path.join(os.path.dirname(self.path), name)
        reader = _SHARDS.get(os.path.splitext(name)[1])
        if reader is None:
            raise refuse(self.path, f"it names the file {name!r}, expected {' or '.join(_SHARDS)}")
        if not os.path.exists(path):
            raise FileNotFoundError(f"{self.path!r} names the file {name!r}, which is not in the same folder.")
        return reader(checked(path))

    def read(self, keys):
        for name, some in itertools.groupby(keys, self._map.__getitem__):
            yield from self._shards[name].read(some)


# {file name: reader of this file}. A folder's weights are in the first of these files that exists.
WEIGHTS = {
    "model.safetensors": SafetensorsFile,
    "model.safetensors.index.json": ShardedFile,
    "pytorch_model.bin": PthFile,
    "pytorch_model.bin.index.json": ShardedFile,
}


# Error messages end with these remedies.
WHOLE_MODEL = "with keras_vit.from_pretrained or keras.saving.load_model"
_NO_CONFIG = "to read weights without a config.json, pass the path of the weights file"


class HuggingFaceFolder(WeightsFile):
    """A folder of transformers or timm: config.json and weights."""

    def __init__(self, path):
        super().__init__(path)
        self.verified = True
        config = self._json("config.json")
        if config is None:
            whole = os.path.join(path, "model.keras")
            hint = f"read {whole!r} {WHOLE_MODEL}" if os.path.isfile(whole) else _NO_CONFIG
            raise refuse(self.path, f"it is a folder that holds no config.json; {hint}")
        if not isinstance(config.get("architecture", config.get("model_type")), str):
            raise refuse(self.path, "its config.json names neither a model_type nor timm's architecture")
        # Only timm writes "architecture".
        self.container = "timm" if "architecture" in config else "huggingface"
        self._weights = self._open_weights()
        self.entries = self._weights.entries
        # Older timm versions wrote the settings of pretrained_cfg at the top level of config.json.
        timm = config.get("pretrained_cfg", config) if self.container == "timm" else None
        if not isinstance(timm, dict | None):
            raise refuse(self.path, f"its config.json has {timm!r} as pretrained_cfg, expected an object")
        self.facts = {**self._weights.facts, "config": config, "preprocessor": self._preprocessor(), "timm": timm}
        # If keras_vit wrote the folder, the weights file also contains all settings, so config.json needs no checksum.
        self.verified = self._weights.verified and (self.verified or FACTS in self.facts)

    def _preprocessor(self):
        """Returns the settings of the image processor. Like transformers, tries processor_config.json first."""
        processor = self._json("processor_config.json")
        inner = processor.get("image_processor") if isinstance(processor, dict) else None
        return inner if isinstance(inner, dict) else self._json("preprocessor_config.json")

    def _json(self, name):
        path = os.path.join(self.path, name)
        if not os.path.exists(path):
            return None
        self.verified &= known_digits(path) is not None
        return read_json(checked(path))

    def _open_weights(self):
        for name, reader in WEIGHTS.items():
            path = os.path.join(self.path, name)
            if os.path.exists(path):
                return reader(checked(path))
        raise refuse(self.path, f"it is a folder that holds none of {', '.join(WEIGHTS)}")

    def read(self, keys):
        return self._weights.read(keys)
