"""Figures without pyplot's global state, and arrays as pictures: what every room that draws needs."""

from pathlib import Path

import numpy as np

from keras_vit.files import replacing


def new_figure(width, height):
    """Makes an empty `matplotlib.figure.Figure`.

    Args:
        width: Float, in inches.
        height: Float, in inches.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('Plots need matplotlib: pip install "keras-vit[inspect]"') from error
    # A Figure of its own, unlike pyplot, needs no display and leaves no state behind.
    return Figure(figsize=(width, height), layout="constrained")


def finish(figure, path):
    """Writes a figure where a path is given, under another name first, so that the file appears whole or not.

    Args:
        figure: A `matplotlib.figure.Figure`.
        path: Path of a .png file to write, or None.

    Returns:
        The figure.

    Raises:
        ValueError: If `path` does not end in .png.
    """
    if path is None:
        return figure
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"Invalid value received for argument `path`. Expected a .png file. Received: {str(path)!r}")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    return figure


def displayable(images):
    """Images of 0..255 as uint8 with one channel or three: of more the first three, of two the first."""
    images = np.clip(np.round(images), 0, 255).astype("uint8")
    return images[..., :3] if images.shape[-1] >= 3 else images[..., :1]
