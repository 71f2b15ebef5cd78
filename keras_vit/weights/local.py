"""Turns what a user passes as `weights` into the path of a file that is there."""

import os

from keras_vit.weights import zoo


def local_path(weights, architecture):
    """Returns the path of a weights file: `weights` itself, or that of a published checkpoint, downloaded if need be.

    Args:
        weights: Path of a file or folder, or a tag of `list_weights`.
        architecture: String, the name of the builder that asks, under which its tags are listed.

    Raises:
        FileNotFoundError: If it is a path and nothing is there.
        ValueError: If it is neither a path nor a tag of that architecture.
    """
    path = os.fspath(weights)
    row = zoo.find(f"{architecture}.{path}")
    if row is None and os.path.exists(path):
        return path
    if row is None and (os.path.basename(path) != path or os.path.splitext(path)[1] or not isinstance(weights, str)):
        raise FileNotFoundError(f"Expected a weights file. Received: {path!r}, where there is no file.")
    return zoo.fetch(row or zoo.resolve(architecture, path))
