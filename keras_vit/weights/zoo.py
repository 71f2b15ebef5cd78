"""The published checkpoints by name, and how their files come here."""

import os
import tempfile
from pathlib import Path

from keras_vit.text_table import text_table
from keras_vit.weights.download import DownloadError, confirm, download
from keras_vit.weights.published import ROWS, Row, folder_and_file
from keras_vit.weights.read import open_checkpoint

FOLDER_VARIABLE = "KERAS_VIT_WEIGHTS"

_SUFFIXES = (".npz", ".pth", ".pt", ".safetensors", ".h5", ".keras", ".bin", ".json")


def list_weights(architecture: str | None = None) -> list[Row]:
    """Lists the published checkpoints that are known by name. Nothing is downloaded.

    Args:
        architecture: Name of a builder, such as "ViTB16", to list its checkpoints alone; None lists all.

    Returns:
        A list of rows, each with its name, url, source, hash, resolution, preprocessing, accuracy and licence.

    Raises:
        ValueError: If no checkpoint of that architecture is known.

    Example:

    >>> [row.tag for row in list_weights("DeiTB16")]
    ['imagenet2012', 'imagenet2012_384']
    """
    if architecture is None:
        return list(ROWS.values())
    rows = [row for row in ROWS.values() if row.architecture == architecture]
    if not rows:
        known = ", ".join(dict.fromkeys(repr(row.architecture) for row in ROWS.values()))
        raise ValueError(
            f"Invalid value received for argument `architecture`. Expected one of {known}. Received: {architecture!r}"
        )
    return rows


def table(rows):
    """Returns rows of `list_weights` as text, one a line."""
    titles = ("name", "resolution", "classes", "top-1", "source", "license")
    cells = [(row.name, row.resolution, row.num_classes, row.accuracy, row.source, row.license) for row in rows]
    return text_table(titles, cells, decimals=2, missing="-")


def find(name):
    """Returns the Row of a checkpoint by its whole name, such as "ViTB16.imagenet21k", or None."""
    return ROWS.get(name)


def resolve(architecture, tag):
    """Returns the Row that the builder named `architecture` means by `weights=tag`, or raises with those it has."""
    row = find(f"{architecture}.{tag}")
    if row is not None:
        return row
    tags = [repr(row.tag) for row in ROWS.values() if row.architecture == architecture]
    expected = (
        f"one of {', '.join(tags)} for {architecture}, or the path of a file"
        if tags
        else f"the path of a file: no published checkpoint of {architecture} is known"
    )
    text = os.fspath(tag) if isinstance(tag, str | os.PathLike) else ""
    like_a_path = any(mark in text for mark in "/\\~") or text.lower().endswith(_SUFFIXES)
    hint = f". There is no file at {text!r}." if like_a_path else ""
    raise ValueError(f"Invalid value received for argument `weights`. Expected {expected}. Received: {tag!r}{hint}")


def local_path(weights, architecture):
    """Returns the path of `weights`, a file, a folder, or a tag of an architecture, which is downloaded if need be."""
    path = os.fspath(weights)
    row = find(f"{architecture}.{path}")
    if row is None and os.path.exists(path):
        return path
    if row is None and (os.path.basename(path) != path or os.path.splitext(path)[1] or not isinstance(weights, str)):
        raise FileNotFoundError(f"Expected a weights file. Received: {path!r}, where there is no file.")
    return fetch(row or resolve(architecture, path))


def fetch(row):
    """Returns the path of a Row's file, checked, and downloaded if need be.

    The folder that the environment variable KERAS_VIT_WEIGHTS names comes first, with the folders in it, then Keras'
    cache, KERAS_HOME or ~/.keras, which downloads go to. The hash of a file whose own was never published is kept in
    the cache when it is first used, and the file must have it ever after.
    """
    folder = _cache()
    known = {"sha256": row.sha256, "sha256_prefix": row.sha256_prefix, "pin": folder / f"{row.filename}.sha256"}
    for place in (*_provided(row), _home() / row.filename, folder / row.filename):
        if place.is_file():
            confirm(place, **known)
            return str(place)
    try:
        download(row.url, folder / row.filename, check=_check_readable, **known)
    except DownloadError as error:
        raise DownloadError(
            f"{error} To use {row.name} without a download, get {row.url} on another machine and put it, under the "
            f"name {row.filename!r}, into {str(folder)!r} or into the folder that the environment variable "
            f"{FOLDER_VARIABLE} names ({os.environ.get(FOLDER_VARIABLE) or 'not set now'})."
        ) from None
    return str(folder / row.filename)


def _check_readable(path):
    """Raises ValueError unless the file is a checkpoint, and an archive's checksums are right."""
    checkpoint = open_checkpoint(path)
    if checkpoint.container == "npz":
        for _ in checkpoint.read(checkpoint.entries):
            pass


def _provided(row):
    """Yields the places where the file may be in the folder that the user named."""
    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        return
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise NotADirectoryError(
            f"Expected the environment variable {FOLDER_VARIABLE} to name a folder. Received: {named!r}"
        )
    yield folder / row.filename
    # A folder named as where it is published: imagenet21k/ViT-B_16.npz.
    yield folder.joinpath(*folder_and_file(row.url))
    # Kaggle mounts each input as a folder in one folder.
    yield from (inner / row.filename for inner in sorted(folder.iterdir()) if inner.is_dir())


def _home():
    return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "keras_vit"


def _cache():
    """The package's folder in Keras' own, or one in the system's temporary folder if that cannot be written."""
    for folder in (_home(), Path(tempfile.gettempdir(), ".keras", "keras_vit")):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return _home()
