"""Folders as the Hugging Face hub keeps them, of transformers and of timm."""

import os

from keras_vit.weights.read.digest import check_sidecar
from keras_vit.weights.read.file import WeightsFile, check_is_file, read_json, refuse
from keras_vit.weights.read.pth import PthFile
from keras_vit.weights.read.safetensors import SafetensorsFile
from keras_vit.weights.read.sharded import ShardedFile

# In the order in which they are looked for.
_WEIGHTS = {
    "model.safetensors": SafetensorsFile,
    "model.safetensors.index.json": ShardedFile,
    "pytorch_model.bin": PthFile,
    "pytorch_model.bin.index.json": ShardedFile,
}


class HuggingFaceFolder(WeightsFile):
    """A folder with config.json and the weights beside it.

    Args:
        path: Path of the folder.

    Attributes:
        container: "timm" where config.json names an "architecture", as timm writes it, else "huggingface".
        entries: Dict from the keys to their entries.
        facts: What the weights' file says, and under "config" what config.json says, under "preprocessor" what
            preprocessor_config.json says or None, under "timm" timm's pretrained_cfg or None.

    Raises:
        FileNotFoundError: If a file of sharded weights is missing.
        ValueError: If config.json or the weights are missing, or a file is damaged.
    """

    def __init__(self, path):
        super().__init__(path)
        config = self._json("config.json")
        if config is None:
            raise refuse(
                self.path,
                "it is a folder that holds no config.json; to read weights without it, pass the path of their file",
            )
        if not isinstance(config.get("architecture", config.get("model_type")), str):
            raise refuse(self.path, "its config.json names neither a model_type nor timm's architecture")
        self.container = "timm" if "architecture" in config else "huggingface"
        self._weights = self._open_weights()
        self.entries = self._weights.entries
        self.facts = {
            **self._weights.facts,
            "config": config,
            "preprocessor": self._json("preprocessor_config.json"),
            "timm": self._pretrained(config) if self.container == "timm" else None,
        }

    def _json(self, name):
        path = os.path.join(self.path, name)
        if not os.path.exists(path):
            return None
        check_is_file(path)
        check_sidecar(path)
        return read_json(path)

    def _pretrained(self, config):
        # Older timm wrote these settings beside the architecture.
        found = config.get("pretrained_cfg", config)
        if not isinstance(found, dict):
            raise refuse(self.path, f"its config.json has {found!r} as pretrained_cfg, expected an object")
        return found

    def _open_weights(self):
        for name, reader in _WEIGHTS.items():
            path = os.path.join(self.path, name)
            if os.path.exists(path):
                check_is_file(path)
                check_sidecar(path)
                return reader(path)
        raise refuse(self.path, f"it is a folder that holds none of {', '.join(_WEIGHTS)}")

    def read(self, keys):
        return self._weights.read(keys)
