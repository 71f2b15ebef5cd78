"""Writes a model's weights in the formats of other code bases."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_vit.record import config_of
from keras_vit.weights import architecture, huggingface_folder, names, write
from keras_vit.weights.names.source import Source


class _Model(NamedTuple):
    """What a format's writer is given: the file's arrays by their canonical keys, and what they cannot say."""

    arrays: dict
    sizes: architecture.Architecture
    facts: dict


class _Format(NamedTuple):
    """One row: whose code reads the format, how it is written, and what that code can be told or cannot do."""

    source: Source
    write: Callable
    # How many of the position embeddings are to belong to prefix tokens, from the number of each token by its weight,
    # how many the model has, and the grid.
    num_prefix_positions: Callable
    says_settings: bool = False
    # Whether its attention has heads that divide the width alone.
    divides_heads: bool = False
    unknown: tuple = ()


def _write_npz(path, model):
    write.write_npz(path, model.arrays, {"keras_vit": model.facts})


def _write_big_vision(path, model):
    write.write_npz(path, {f"params/{key}": a for key, a in model.arrays.items()}, {"keras_vit": model.facts})


def _write_bit(path, model):
    write.write_npz(path, {f"resnet/{key}": a for key, a in model.arrays.items()}, {"keras_vit": model.facts})


def _write_timm(path, model):
    write.write_safetensors(path, model.arrays, model.facts)


def _write_huggingface(path, model):
    huggingface_folder.write_folder(Path(path), model.arrays, model.sizes, model.facts)


def _all_of_prefix(counts, here, grid):
    return sum(counts.values())


def _all_or_none_of_prefix(counts, here, grid):
    """timm's `no_embed_class`; its distilled models always have all."""
    return sum(counts.values()) if here or "distillation_token/tokens" in counts else 0


def _all_of_square(counts, here, grid):
    """big_vision has none, but its `load` adds a row too many to the class token where it can tell it by the number."""
    return here if grid[0] == grid[1] and sum(counts.values()) == 1 else 0


FORMATS = {
    "npz": _Format(names.OFFICIAL, _write_npz, _all_of_prefix),
    "big_vision": _Format(names.BIG_VISION, _write_big_vision, _all_of_square),
    "timm": _Format(
        names.TIMM, _write_timm, _all_or_none_of_prefix, divides_heads=True, unknown=("pre_logits/kernel",)
    ),
    "huggingface": _Format(
        names.HUGGINGFACE, _write_huggingface, _all_of_prefix, says_settings=True, divides_heads=True
    ),
}
_BIT = _Format(names.BIT, _write_bit, _all_of_prefix)


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
    _check(model, format, row, sizes, variables, allow)
    values = {weight: np.asarray(ops.convert_to_numpy(ops.cast(v, "float32"))) for weight, v in variables.items()}
    _fit_prefix_positions(values, sizes, row.num_prefix_positions)
    row.write(path, _Model(_arrays(row.source, values, sizes), sizes, _facts(model, sizes)))


def _fit_prefix_positions(values, sizes, wanted):
    """Gives the table of positions the rows for prefix tokens that a format has, by ways that compute the same.

    Rows that are missing are zeros, and rows too many are added to the tokens themselves.
    """
    table = values.get("position_embedding/embeddings")
    if table is None:
        return
    tokens = (*architecture.PREFIX_TOKENS, *architecture.REGISTERS)
    counts = {name: values[name].shape[1] for name in tokens if name in values}
    here = table.shape[1] - sizes.grid_size[0] * sizes.grid_size[1]
    there = wanted(counts, here, sizes.grid_size)
    if there > here:
        table = np.insert(table, [here] * (there - here), 0, axis=1)
    else:
        for name, rows in architecture.rows_of_tokens(table[:, :here], counts, there):
            values[name] = values[name] + rows
        table = np.delete(table, range(there, here), axis=1)
    values["position_embedding/embeddings"] = table


def _check(model, format, row, sizes, variables, allow):
    """Raises unless the format's code computes with the written weights what the model does."""
    nameless = [weight for weight in variables if row.source.find(weight) is None or weight in row.unknown]
    if nameless:
        raise ValueError(
            f"The format {format!r} has no place for {len(nameless)} weights of model {model.name!r}: "
            f"{', '.join(nameless[:10])}"
        )
    missing = [weight for weight in row.source.required if weight not in variables]
    if missing:
        raise ValueError(f"The format {format!r} needs {' and '.join(missing)}, which model {model.name!r} lacks.")
    for what in architecture.unwritten(model, row.source.name):
        raise ValueError(f"The format {format!r} cannot say that model {model.name!r} has {what}. Nothing was written.")
    if row.divides_heads and sizes.num_layers and sizes.head_dim * sizes.num_heads != sizes.hidden_dim:
        raise ValueError(
            f"The format {format!r} needs heads that divide the width. Received: {sizes.num_heads} heads of "
            f"{sizes.head_dim} in {sizes.hidden_dim} channels"
        )
    settings = {"activation": row.source.activation, "layer_norm_epsilon": row.source.layer_norm_epsilon}
    if row.says_settings:
        settings = dict.fromkeys(settings)
    for name, here, there in architecture.differences(model, settings, allow):
        raise ValueError(
            f"Code that reads the format {format!r} computes with {name}={there!r}, and model {model.name!r} was built "
            f"with {name}={here!r}. Nothing was written. Pass allow=({name!r},) to write it all the same."
        )


def _arrays(source, values, sizes):
    """{canonical key: array}; parts of one array of the file are joined."""
    parts = {}
    for weight, value in values.items():
        name = source.find(weight)
        for key, array in zip(name.keys, name.codec.to_file(value, sizes.heads), strict=True):
            parts.setdefault(key, {})[name.codec.part] = array
    return {
        key: np.concatenate([found[i] for i in sorted(found)]) if len(found) > 1 else found[min(found)]
        for key, found in parts.items()
    }


def _facts(model, sizes):
    """What the weights cannot say, as `from_pretrained` reads it."""
    normalization = model.get_layer("normalization")
    return {
        "config": _record(model, sizes).to_dict(),
        **architecture.settings_of(model),
        "num_heads": sizes.num_heads,
        "grid": sizes.grid_size,
        "image_size": None if None in model.input_shape[1:3] else model.input_shape[1:3],
        "preprocessing": dataclasses.asdict(normalization.preprocessing),
    }


def _record(model, sizes):
    """The record of a model, with the head that it has: it may be the user's own."""
    config = config_of(model)
    head = next((layer for layer in model.layers if layer.name == "head"), None)
    changes = {"num_classes": sizes.num_classes, "classifier_activation": getattr(head, "activation", None)}
    if len(config.class_names or ()) != sizes.num_classes:
        changes["class_names"] = None
    if getattr(config, "return_both_heads", False):
        changes["return_both_heads"] = sizes.num_classes > 0
    return config.replace(**changes)
