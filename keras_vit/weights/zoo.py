"""The published checkpoints by name, and how their files come here."""

import os
import tempfile
from pathlib import Path

from keras_vit.weights.download import DownloadError, confirm, download
from keras_vit.weights.published import ROWS, Row, folder_and_file
from keras_vit.weights.read import open_checkpoint

FOLDER_VARIABLE = "KERAS_VIT_WEIGHTS"

_SUFFIXES = (".npz", ".pth", ".pt", ".safetensors", ".h5", ".keras", ".bin", ".json")


def list_weights(architecture: str | None = None) -> list[Row]:
    """Lists the published checkpoints that are known by name. Nothing is downloaded.

    Args:
        architecture: Name of a builder, as in "ViTB16", to list its checkpoints alone; None lists all.

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
    """Sets rows out as text, one a line.

    Args:
        rows: Rows, as `list_weights` returns them.

    Returns:
        A string of aligned columns below a line of titles.

    Example:

    >>> print(table(list_weights("DeiTB16")))
    name                      resolution  classes  top-1  source  license
    DeiTB16.imagenet2012             224     1000   81.8  deit    Apache-2.0
    DeiTB16.imagenet2012_384         384     1000   82.9  deit    Apache-2.0
    """
    cells = [("name", "resolution", "classes", "top-1", "source", "license")]
    for row in rows:
        accuracy = "-" if row.accuracy is None else str(row.accuracy)
        cells.append((row.name, str(row.resolution), str(row.num_classes), accuracy, row.source, row.license))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = "<>>><<"
    lines = ("  ".join(f"{c:{s}{w}}" for c, s, w in zip(line, sides, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)


def find(name):
    """Finds a checkpoint by its whole name.

    Args:
        name: "architecture.tag", as in "ViTB16.imagenet21k".

    Returns:
        Its Row, or None if no checkpoint is known by that name.

    Example:

    >>> find("ViTB16.imagenet21k").num_classes
    21843
    """
    return ROWS.get(name)


def resolve(architecture, tag):
    """Finds the checkpoint that a builder's `weights=` means.

    Args:
        architecture: Name of the builder, as in "ViTB16".
        tag: What `weights` was given and is no file, as in "imagenet21k".

    Returns:
        Its Row.

    Raises:
        ValueError: If that architecture has no checkpoint of that tag. It names those that there are.

    Example:

    >>> resolve("ViTB16", "imagenet21k").url
    'https://storage.googleapis.com/vit_models/imagenet21k/ViT-B_16.npz'
    """
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


def fetch(row: Row) -> str:
    """Brings the file of a checkpoint here, or finds it, and checks it.

    It is looked for in the folder that the environment variable KERAS_VIT_WEIGHTS names and in the folders in that, by
    `row.filename` or in a folder called as it is where it is published ("imagenet21k/ViT-B_16.npz"); then in Keras'
    cache, KERAS_HOME or ~/.keras; and is then downloaded to there. A file whose hash nobody published is pinned when it
    is first used, in a `.sha256` file of the cache, and must be the same ever after.

    Args:
        row: A Row, from `resolve` or `find`.

    Returns:
        Path of the file.

    Raises:
        DownloadError: If it is nowhere here and cannot be downloaded. It says which file to put where.
        ValueError: If the file that is here is not the one that its hash belongs to.
        NotADirectoryError: If KERAS_VIT_WEIGHTS names no folder.

    Example:

    >>> path = fetch(find("ViTB16.imagenet21k"))  # doctest: +SKIP
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
    """Raises ValueError unless the file is a whole checkpoint: keys can be read, and an archive's checksums hold."""
    checkpoint = open_checkpoint(path)
    if checkpoint.container == "npz":
        for _ in checkpoint.read(checkpoint.entries):
            pass


def _provided(row):
    """Yields where the file may be in the folder that the user named."""
    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        return
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise NotADirectoryError(
            f"Expected the environment variable {FOLDER_VARIABLE} to name a folder. Received: {named!r}"
        )
    yield folder / row.filename
    yield folder.joinpath(*folder_and_file(row.url))
    # Kaggle mounts each input as a folder in one folder.
    yield from (inner / row.filename for inner in sorted(folder.iterdir()) if inner.is_dir())


def _home():
    """The part of Keras' own folder that is this package's."""
    return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "keras_vit"


def _cache():
    """That folder, or one in the system's temporary folder where it cannot be written, as Keras does it."""
    for folder in (_home(), Path(tempfile.gettempdir(), ".keras", "keras_vit")):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return _home()
