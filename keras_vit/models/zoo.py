"""Finds and downloads published checkpoints by name."""

import contextlib
import functools
import os
from pathlib import Path

from keras_vit import arguments
from keras_vit.console import text_table
from keras_vit.files import describe_path
from keras_vit.models.builders import VARIANTS
from keras_vit.models.catalog import identify, read_config
from keras_vit.models.loading import fields_of_file, open_file
from keras_vit.models.vit.variants import decode_variant
from keras_vit.weights import hub
from keras_vit.weights.download import DownloadError, confirm, download
from keras_vit.weights.published import ROWS, PublishedCheckpoint, folder_and_file

FOLDER_VARIABLE = "KERAS_VIT_WEIGHTS"


def list_weights(architecture: str | None = None) -> list[PublishedCheckpoint]:
    """Lists the published checkpoints, without downloading any.

    Args:
        architecture: Name of a builder, such as "ViTB16", to list only its checkpoints; None lists all.

    Returns:
        A list of named tuples with the fields `name`, `architecture`, `tag`, `url`, `source`, `sha256_prefix`,
        `resolution` (pixels), `num_classes` (0 without a classifier), `accuracy` (ImageNet top-1 in percent, or None),
        `license` and `filename`. The property `preprocessing` of a tuple is a `keras_vit.Preprocessing`.

    Raises:
        ValueError: If no checkpoint of that architecture is known.

    Example:

    >>> [row.tag for row in list_weights("DeiTB16")]
    ['imagenet2012', 'imagenet2012_384']
    """
    if architecture is None:
        return list(ROWS.values())
    arguments.choice("architecture", architecture, _architectures())
    return [row for row in ROWS.values() if row.architecture == architecture]


def containing(text):
    """Returns the checkpoints whose names contain `text` in upper or lower case; raises ValueError if none does."""
    rows = [row for row in ROWS.values() if text.lower() in row.name.lower()]
    if not rows:
        expected = f"one of {', '.join(_architectures())}, or a part of a checkpoint's name"
        raise arguments.invalid("name", expected, text, _architectures())
    return rows


def _architectures():
    return list(dict.fromkeys(row.architecture for row in ROWS.values()))


def table(rows, columns=("name", "params", "resolution", "classes", "top-1", "license", "source")):
    """Formats rows of `list_weights`, one per line; `columns` are keys of `COLUMNS`."""
    values = [COLUMNS[arguments.choice("columns", column, tuple(COLUMNS))] for column in columns]
    return text_table(columns, [[value(row) for value in values] for row in rows], decimals=2, missing="-")


def resolve(architecture, tag):
    """Returns the PublishedCheckpoint with this builder name and tag; raises ValueError for an unknown tag."""
    row = ROWS.get(f"{architecture}.{tag}")
    if row is not None:
        return row
    tags = [row.tag for row in ROWS.values() if row.architecture == architecture]
    expected = f"the path of a file, or a tag of {architecture}: {', '.join(map(repr, tags)) or 'none is known'}"
    # Other libraries use the name "imagenet" for the weights that keras_vit calls "imagenet2012".
    meant = [known for known in tags if known == f"{tag}2012"] or tags
    raise arguments.invalid("weights", expected, tag, meant)


def local_path(weights, architecture):
    """Returns the local path of `weights`, which is a path, a model name on a hub, or a tag of `architecture`.

    Missing files of a hub or a tag are downloaded.
    """
    path = hub.local_path(os.fspath(weights))
    row = ROWS.get(f"{architecture}.{path}")
    if row is None and os.path.exists(path):
        return path
    is_path = os.path.basename(path) != path or os.path.splitext(path)[1] or not isinstance(weights, str)
    if row is None and is_path and ROWS.get(path) is None:
        raise FileNotFoundError(f"Expected a file or folder of weights. Received: {describe_path(path)}.")
    return fetch(row or resolve(architecture, path))


def fetch(row):
    """Downloads a published file if needed, verifies its hash, and returns its path.

    The file may be in the folder that the environment variable KERAS_VIT_WEIGHTS names, in a subfolder of this folder,
    or in Keras' cache, where downloads are stored. If no full hash was published, the hash of the first use is stored
    in the cache, and later uses are checked against this hash.
    """
    folder = Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "keras_vit"
    # If the folder cannot be created, the download fails with an error that explains how to choose another folder.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    known = {"sha256_prefix": row.sha256_prefix, "pin": folder / f"{row.filename}.sha256"}
    known["check"] = functools.partial(_check, row)
    for place in (*_provided(row), folder / row.filename):
        if place.is_file():
            confirm(place, **known)
            return str(place)
    try:
        download(row.url, folder / row.filename, **known)
    except OSError as error:
        raise DownloadError(
            f"{error} To use {row.name} without a download, get {row.url} on another machine. Name the file "
            f"{row.filename!r}, and put it into {str(folder)!r} or the folder in the environment variable "
            f"{FOLDER_VARIABLE} ({os.environ.get(FOLDER_VARIABLE) or 'not set now'}). If {str(folder)!r} cannot "
            "be written, set KERAS_HOME to another folder."
        ) from None
    return str(folder / row.filename)


def _check(row, path):
    """Raises ValueError if a file is incomplete, or contains another model than the `PublishedCheckpoint` `row`."""
    family, file = identify(open_file(path), row.source)
    fields = fields_of_file(file, read_config(file))
    if (family.config.variant_from_fields(fields), fields["num_classes"]) != (
        VARIANTS[row.architecture][1],
        row.num_classes,
    ):
        what = family.config.describe(fields)
        raise ValueError(f"Expected the file of {row.name}. Received: {str(path)!r} with {what}.")
    for _ in file.read(file.shapes):
        pass


def _parameters(row):
    """Returns the number of parameters of a ViT, without registers and LayerScale.

    Returns None for other families, and for variants with "+" in the name (hybrids, S+ and H+).
    """
    family, variant, fields = VARIANTS[row.architecture]
    if family != "vit" or "+" in variant:
        return None
    (width, num_layers, mlp_dim, _, gated), patch, _ = decode_variant(variant)
    # The parameters of the four attention layers (queries, keys, values and output), the MLP, and the two norms.
    block = 4 * width * (width + 1) + (2 + gated) * mlp_dim * width + (1 + gated) * mlp_dim + width + 4 * width
    embedding = (3 * patch**2 + 1 + 1 + (row.resolution // patch) ** 2 + 1) * width
    embedding += 2 * width if (distilled := fields.get("distillation_token", False)) else 0
    heads = (1 + distilled) * (width + 1) * row.num_classes + width * fields.get("projection_dim", 0)
    return num_layers * block + embedding + 2 * width + heads


COLUMNS = {
    "name": lambda row: row.name,
    "params": lambda row: f"{parameters / 1e6:.0f}M" if (parameters := _parameters(row)) else None,
    "resolution": lambda row: row.resolution,
    "classes": lambda row: row.num_classes,
    "top-1": lambda row: row.accuracy,
    "license": lambda row: row.license,
    "source": lambda row: row.source,
    "sha256": lambda row: row.sha256_prefix,
    "url": lambda row: row.url,
}


def _provided(row):
    """Yields the paths that a published file may have in the folder that KERAS_VIT_WEIGHTS names."""
    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        return
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise NotADirectoryError(
            f"Expected the environment variable {FOLDER_VARIABLE} to name a folder. Received: {named!r}"
        )
    yield folder / row.filename
    # The folder may have the same subfolders as the address of a file, such as imagenet21k/ViT-B_16.npz.
    yield folder.joinpath(*folder_and_file(row.url))
    # Kaggle mounts each input as a subfolder.
    yield from (inner / row.filename for inner in sorted(folder.iterdir()) if inner.is_dir())
