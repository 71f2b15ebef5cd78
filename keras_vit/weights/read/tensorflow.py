"""Reads checkpoints of TensorFlow 1 (an index and data files) with TensorFlow. No code in the files is run."""

import glob
import os
import re

from keras_vit.weights.read.file import Entry, WeightsFile, checked, imported, refuse, refusing_damage

# The suffix of the moving average of a variable. The published weights are moving averages.
AVERAGE = "ExponentialMovingAverage"
# The optimizer stores variables for each weight under these names.
_SLOTS = r"RMSProp(_\d+)?|Momentum|Adam(_\d+)?|Adagrad"
# The last bytes of an index.
_MAGIC = bytes.fromhex("57fb808b247547db")


def is_index(path):
    """Returns True if a path is the index or a data file of a TensorFlow checkpoint."""
    if re.search(r"\.data-\d{5}-of-\d{5}$", os.fsdecode(path)):
        return True
    with open(path, "rb") as file:
        file.seek(max(os.path.getsize(path) - len(_MAGIC), 0))
        return file.read() == _MAGIC


def index_in(folder):
    """Returns the path of the only index in a folder, or None."""
    found = glob.glob(os.path.join(glob.escape(os.fsdecode(folder)), "*.index"))
    if len(found) > 1:
        raise refuse(folder, f"it holds {len(found)} checkpoints; pass the path of one, such as {min(found)!r}")
    return found[0] if found else None


class TensorFlowCheckpoint(WeightsFile):
    """A checkpoint of TensorFlow 1. `path` is its .index or .data file.

    If the checkpoint contains the moving average of a variable, reads this average instead of the variable.
    """

    container = "tensorflow"

    def __init__(self, path):
        self._prefix = re.sub(r"\.(index|data-\d{5}-of-\d{5})$", "", os.fsdecode(path))
        super().__init__(checked(f"{self._prefix}.index"))
        # TensorFlow verifies checksums of each block and array.
        self.verified = True
        tf = imported(self._prefix, "tensorflow", "TensorFlow")
        with refusing_damage(self.path):
            self._reader = tf.train.load_checkpoint(self._prefix)
            shapes = dict(self._reader.get_variable_to_shape_map())
            dtypes = self._reader.get_variable_to_dtype_map()
        averages = {name.removesuffix(f"/{AVERAGE}") for name in shapes if name.endswith(f"/{AVERAGE}")}
        plain = [name for name in shapes if not name.endswith(f"/{AVERAGE}")]
        slots = [name for name in plain if self._is_slot(name, shapes)]
        weights = [name for name in plain if name not in {*slots, "global_step"}]
        self._names = {name: f"{name}/{AVERAGE}" if name in averages else name for name in {*weights, *averages}}
        for key, name in self._names.items():
            if not dtypes[name].is_floating:
                raise refuse(self.path, f"{name!r} is of dtype {dtypes[name].name}, expected floats")
            self.entries[key] = Entry(tuple(shapes[name]), dtypes[name])
        if not self.entries:
            raise refuse(self.path, "it holds no variables")
        self.facts = self._facts(averages, slots, "global_step" in shapes)

    @staticmethod
    def _is_slot(name, shapes):
        variable, _, slot = name.rpartition("/")
        return re.fullmatch(_SLOTS, slot) is not None and variable in shapes

    def _facts(self, averages, slots, has_step):
        others = {"global_step": has_step, f"{len(slots)} variables of the optimizer": slots}
        facts = {"wrapper": AVERAGE, "others": [name for name, found in others.items() if found], "assumed": {}}
        if averages:
            facts["others"].append(f"{len(averages)} variables before averaging")
        without = [name for name in self._names if name not in averages]
        if without:
            which = f"{len(without)} of {len(self._names)} variables have no average; they are loaded as they are"
            facts["assumed"] = {AVERAGE: which}
        return facts

    def _read(self, _, key):
        return self._reader.get_tensor(self._names[key])
