"""Reads a model from whatever keeps one."""

import os
import zipfile
from pathlib import Path

import keras

from keras_vit.models.pretrained import from_pretrained

# What a run's folder holds in the end, and from the start.
MODEL, STARTED = "model.keras", "recipe.json"


def read_model(path: str | os.PathLike, **options) -> keras.Model:
    """Reads a model from a .keras file, the folder of a training run, or a checkpoint.

    Args:
        path: Path of a .keras file, of a run's folder, which holds `model.keras`, or of a checkpoint; or the name of a
            published one.
        **options: Arguments of `from_pretrained` for a checkpoint. Those that are None count for nothing.

    Returns:
        A `keras.Model`, not compiled.

    Raises:
        FileNotFoundError: If there is no such file, or the run has not ended.
        ValueError: If the file is damaged, or there are options for a model that says itself what it is.

    Example:

    >>> model = read_model("runs/flowers")  # doctest: +SKIP
    """
    path, options = os.fspath(path), {name: value for name, value in options.items() if value is not None}
    if os.path.isfile(os.path.join(path, MODEL)):
        path = os.path.join(path, MODEL)
    elif os.path.isfile(os.path.join(path, STARTED)):
        raise FileNotFoundError(f"Expected a run that has ended. There is no {MODEL} in {path!r} yet.")
    if not path.endswith(".keras"):
        return from_pretrained(path, **options)
    if options:
        raise ValueError(f"Expected no {', '.join(options)} with {path!r}, which says it itself.")
    if not Path(path).is_file():
        raise FileNotFoundError(f"Expected a .keras file. There is no file {path!r}")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"Cannot read {path!r}: it is no .keras file, or damaged.")
    try:
        return keras.saving.load_model(path, compile=False)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"Cannot read {path!r}: it is no .keras file, or damaged ({error}).") from error
    except TypeError as error:
        # Keras' word for a layer that it does not know.
        raise ValueError(
            f"Cannot read {path!r}. A model with layers of your own is read in Python, where they are defined. {error}"
        ) from error
