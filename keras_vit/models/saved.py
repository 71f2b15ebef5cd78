"""Reads models that Keras saved: .keras files and the folders of training runs."""

import json
import os
import re
import zipfile

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.config import find_normalization
from keras_vit.models.coatnet.checkpoint import table_grids
from keras_vit.models.family import FamilyModel
from keras_vit.weights.found import STATED, Found, Positions
from keras_vit.weights.read.bounds import open_archive
from keras_vit.weights.read.file import Entry, WeightsFile, checked
from keras_vit.weights.source import Name, Source
from keras_vit.weights.tokens import weights_by_path

# A training run writes `STARTED` to its folder at the start, and `MODEL` at the end.
MODEL, STARTED = "model.keras", "recipe.json"
# Keras checks few values of a config, so a damaged config raises many kinds of errors.
_DAMAGE = (zipfile.BadZipFile, ArithmeticError, AttributeError, LookupError, RecursionError, ValueError)


def saved_file(path):
    """Returns `path` if it is a .keras file, the .keras file in `path` if it is a training run's folder, or None."""
    if os.path.isfile(os.path.join(path, MODEL)):
        return os.path.join(path, MODEL)
    if os.path.isfile(os.path.join(path, STARTED)):
        raise FileNotFoundError(
            f"Expected a run that has ended. Received: {path!r}, which contains no {MODEL} yet. Start the training "
            "again to continue the run."
        )
    return path if path.endswith(".keras") and os.path.exists(path) else None


def _load(path):
    damaged = f"Cannot read {path!r}: it is not a .keras file, or it is damaged"
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{damaged}.")
    try:
        # Check the sizes of the files in the archive, because Keras does not limit them.
        with open_archive(path):
            pass
        return keras.saving.load_model(path, compile=False)
    except TypeError as error:
        if (version := _keras_version(path)) is not None and _numbers(version) > _numbers(keras.__version__):
            raise ValueError(
                f"Cannot read {path!r}. Keras {version} saved it, and Keras {keras.__version__} is installed. Install "
                f"Keras {version} or newer: pip install 'keras>={version}'. {error}"
            ) from error
        # Keras raises TypeError for an unknown layer.
        raise ValueError(
            f"Cannot read {path!r}. If the model has your own layers, define them before you load the file. {error}"
        ) from error
    except _DAMAGE as error:
        raise ValueError(f"{damaged} ({type(error).__name__}: {error}).") from error


def _keras_version(path):
    """Returns the version of Keras that saved a .keras file, or None."""
    try:
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read("metadata.json")).get("keras_version")
    except _DAMAGE:
        return None


def _numbers(version):
    return [int(number) for number in re.findall(r"\d+", str(version))[:3]]


class SavedSource(Source):
    """The `Source` of .keras files, in which the keys are the weight paths of this package."""

    def find(self, weight):
        return Name((weight,))

    def find_weight_path(self, key):
        return key


class SavedModel(WeightsFile):
    """A .keras file. Keras loads the whole model as the attribute `model`. The arrays are the weights of this model."""

    container = "keras"

    def __init__(self, path):
        super().__init__(path)
        self.model, self.verified = _load(checked(path)), True

    def identified(self):
        """Returns (`SavedSource`, key prefix ""). Raises ValueError if the file has no complete keras_vit model."""
        model, expected = self.model, f"Expected {self.path!r} to contain a whole model built by keras_vit."
        if not isinstance(model, FamilyModel):
            raise ValueError(
                f"{expected} Received: a {type(model).__name__}. Call model = from_pretrained(path), without other "
                "arguments. Save the inner model, model.get_layer(...), to a new file, and use the new file instead."
            )
        if find_normalization(model).folded:
            raise ValueError(f"{expected} Received: a model folded by fold_preprocessing. Use the original model.")
        if (model.head is None) != (model.config.num_classes == 0):
            raise ValueError(f"{expected} Received: a model cut before its head. Use the original model.")
        self._weights = weights_by_path(model)
        self.entries = {key: Entry(tuple(weight.shape), weight.dtype) for key, weight in self._weights.items()}
        method = getattr(model.config, "position_interpolation", "linear")
        return SavedSource("keras_model", {}, family=model.config.family, position_interpolation=method), ""

    def read(self, keys):
        """Yields (key, float32 array) for each of `keys`, in order."""
        for key in keys:
            yield key, ops.convert_to_numpy(ops.cast(self._weights[key], "float32"))


def read_config(file, grid_size=None):
    """Returns the config fields of a .keras file, a `CanonicalFile`, as a `Found`; `grid_size` must be None."""
    if grid_size is not None:
        raise arguments.invalid("grid_size", "None for a .keras file, which contains it", grid_size)
    config, found = file.file.model.config, Found(file.path)
    found.put(STATED, **vars(config), name=file.file.model.name)
    found.position_interpolation = file.source.position_interpolation
    if config.family == "vit":
        table = file.weights.get("position_embedding/embeddings", (1, 0))
        found.positions = Positions(table[1] - config.grid[0] * config.grid[1], config.grid, True)
    found.tables = table_grids(config, file.weights)
    return found
