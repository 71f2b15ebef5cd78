"""Writes a model's weights in the formats of other code bases."""

import json
import os
import zipfile
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.files import replacing
from keras_vit.weights import architecture, names
from keras_vit.weights.load import GRID_COMMENT

FORMATS = {"npz": names.OFFICIAL}


def save_weights(
    model: keras.Model, path: str | os.PathLike, format: str = "npz", *, allow: str | Sequence[str] = ()
) -> None:
    """Writes a ViT's weights as another code base keeps them. The file appears whole or not at all.

    The weights alone are written: preprocessing constants, dropout rates and the like have no place in these formats.

    Args:
        model: A ViT of this package's builders.
        path: Path of the file to write; an existing file is replaced.
        format: "npz", the official Flax code's format and published names.
        allow: Differences between the model and the format's own code to permit: "activation" and "layer_norm_epsilon".

    Raises:
        ValueError: If the format is unknown, has no place for one of the model's weights, or its code would compute
            something else with them.

    Example:

    >>> keras_vit.save_weights(keras_vit.ViTTi16(), "ViT-Ti_16.npz")  # doctest: +SKIP
    """
    if format not in FORMATS:
        raise ValueError(
            "Invalid value received for argument `format`. "
            f"Expected one of {', '.join(map(repr, FORMATS))}. Received: {format!r}"
        )
    source = FORMATS[format]
    sizes = architecture.of_model(model)
    variables = architecture.weights_of(model)
    nameless = [weight for weight in variables if source.find(weight) is None]
    if nameless:
        raise ValueError(
            f"The format {format!r} has no place for {len(nameless)} weights of model {model.name!r}: "
            f"{', '.join(nameless[:10])}"
        )
    for what in architecture.unwritten(model):
        raise ValueError(f"The format {format!r} cannot say that model {model.name!r} has {what}. Nothing was written.")
    for name, here, there in architecture.differences(model, source, allow):
        raise ValueError(
            f"Code that reads the format {format!r} computes with {name}={there!r}, and model {model.name!r} was built "
            f"with {name}={here!r}. Nothing was written. Pass allow=({name!r},) to write it all the same."
        )
    arrays = {}
    for weight, variable in variables.items():
        name = source.find(weight)
        value = np.asarray(ops.convert_to_numpy(ops.cast(variable, "float32")))
        arrays.update(zip(name.keys, name.codec.to_file(value, sizes), strict=True))
    _write_npz(path, arrays, {GRID_COMMENT: sizes.grid_size})


def _write_npz(path, arrays, comment):
    with replacing(path) as temporary:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.comment = json.dumps(comment).encode()
