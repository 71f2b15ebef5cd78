"""Writes a model's weights in the formats of other code bases."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_vit.weights import architecture, huggingface, names, write
from keras_vit.weights.checkpoint import GRID_COMMENT
from keras_vit.weights.names.source import Source


class _Model(NamedTuple):
    """What a format's writer is given: the file's arrays by their canonical keys, and what they cannot say."""

    arrays: dict
    sizes: architecture.Architecture
    facts: dict


class _Format(NamedTuple):
    """One row: whose code reads the format, how it is written, and whether it says settings itself."""

    source: Source
    write: Callable
    says_settings: bool = False


def _write_npz(path, model):
    write.write_npz(path, model.arrays, {GRID_COMMENT: model.sizes.grid_size})


def _write_big_vision(path, model):
    arrays = {f"params/{key}": array for key, array in model.arrays.items()}
    write.write_npz(path, arrays, {GRID_COMMENT: model.sizes.grid_size})


def _write_bit(path, model):
    write.write_npz(path, {f"resnet/{key}": array for key, array in model.arrays.items()}, {})


def _write_timm(path, model):
    write.write_safetensors(path, model.arrays, model.facts)


def _write_huggingface(path, model):
    huggingface.write_folder(Path(path), model.arrays, model.sizes, model.facts)


FORMATS = {
    "npz": _Format(names.OFFICIAL, _write_npz),
    "big_vision": _Format(names.BIG_VISION, _write_big_vision),
    "timm": _Format(names.TIMM, _write_timm),
    "huggingface": _Format(names.HUGGINGFACE, _write_huggingface, says_settings=True),
}
_BIT = _Format(names.BIT, _write_bit)


def save_weights(
    model: keras.Model, path: str | os.PathLike, format: str = "npz", *, allow: str | Sequence[str] = ()
) -> None:
    """Writes a model's weights as another code base keeps them. A file appears whole or not at all.

    Args:
        model: A ViT, hybrid or BiT of this package's builders.
        path: Path of the file to write, of the folder for "huggingface"; an existing file is replaced.
        format: "npz", the official Flax code's format and published names (for a BiT the official TensorFlow code's);
            "big_vision", an .npz that its `load` reads; "timm", a state dict as .safetensors; "huggingface", a folder
            of config.json, preprocessor_config.json and model.safetensors for transformers. The last two also say the
            preprocessing constants, which `from_pretrained` reads again.
        allow: Differences between the model and the format's own code to permit: "activation" and "layer_norm_epsilon".
            timm's code, for one, has to be told `act_layer="gelu_tanh"` then.

    Raises:
        ValueError: If the format is unknown, has no place for one of the model's weights or misses one, or its code
            would compute something else with them.

    Example:

    >>> keras_vit.save_weights(keras_vit.ViTTi16(), "ViT-Ti_16.npz")  # doctest: +SKIP
    """
    if format not in FORMATS:
        raise ValueError(
            "Invalid value received for argument `format`. "
            f"Expected one of {', '.join(map(repr, FORMATS))}. Received: {format!r}"
        )
    sizes = architecture.of_model(model)
    row = FORMATS[format] if sizes.num_layers or format != "npz" else _BIT
    variables = architecture.weights_of(model)
    _check(model, format, row, variables, allow)
    row.write(path, _Model(_arrays(row.source, variables, sizes), sizes, _facts(model, sizes)))


def _check(model, format, row, variables, allow):
    """Raises unless the format's code computes with the written weights what the model does."""
    nameless = [weight for weight in variables if row.source.find(weight) is None]
    if nameless:
        raise ValueError(
            f"The format {format!r} has no place for {len(nameless)} weights of model {model.name!r}: "
            f"{', '.join(nameless[:10])}"
        )
    missing = [weight for weight in row.source.required if weight not in variables]
    if missing:
        raise ValueError(f"The format {format!r} needs {' and '.join(missing)}, which model {model.name!r} lacks.")
    for what in architecture.unwritten(model):
        raise ValueError(f"The format {format!r} cannot say that model {model.name!r} has {what}. Nothing was written.")
    settings = {"activation": row.source.activation, "layer_norm_epsilon": row.source.layer_norm_epsilon}
    if row.says_settings:
        settings = dict.fromkeys(settings)
    for name, here, there in architecture.differences(model, settings, allow):
        raise ValueError(
            f"Code that reads the format {format!r} computes with {name}={there!r}, and model {model.name!r} was built "
            f"with {name}={here!r}. Nothing was written. Pass allow=({name!r},) to write it all the same."
        )


def _arrays(source, variables, sizes):
    """{canonical key: array}; parts of one array of the file are joined."""
    parts = {}
    for weight, variable in variables.items():
        name = source.find(weight)
        value = np.asarray(ops.convert_to_numpy(ops.cast(variable, "float32")))
        for key, array in zip(name.keys, name.codec.to_file(value, sizes.has_heads), strict=True):
            parts.setdefault(key, {})[name.codec.part] = array
    return {
        key: np.concatenate([found[i] for i in sorted(found)]) if len(found) > 1 else found[min(found)]
        for key, found in parts.items()
    }


def _facts(model, sizes):
    """What the weights cannot say, as `from_pretrained` reads it."""
    normalization = model.get_layer("normalization")
    return {
        **architecture.settings_of(model),
        "num_heads": sizes.num_heads,
        "grid": sizes.grid_size,
        "image_size": None if None in model.input_shape[1:3] else model.input_shape[1:3],
        "preprocessing": {
            key: getattr(normalization, key) for key in ("mean", "std", "interpolation", "crop_fraction")
        },
    }
