"""Figures without pyplot's global state, and arrays as pictures."""

import math
from pathlib import Path

import numpy as np

from keras_vit.files import replacing


def new_figure(width, height):
    """An empty `matplotlib.figure.Figure`, in inches. Raises ImportError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('Plots need matplotlib: pip install "keras-vit[inspect]"') from error
    # Unlike pyplot it needs no display and leaves no state behind.
    return Figure(figsize=(width, height), layout="constrained")


def new_panels(number, across, size):
    """A figure of (width, height) inches and its panels, an array of `number` axes in rows of `across`."""
    figure = new_figure(*size)
    panels = figure.subplots(math.ceil(number / across), across, squeeze=False).ravel()
    for axes in panels[number:]:
        axes.remove()
    return figure, panels[:number]


def show(axes, image, vmax=255, **options):
    """Draws an image, (height, width, 1 or 3), without ticks."""
    image = image[..., 0] if image.shape[-1] == 1 else image
    axes.imshow(image, cmap="gray", vmin=0, vmax=vmax, **options)
    axes.set(xticks=[], yticks=[])


def finish(figure, path):
    """Writes a figure to a .png file, complete or not at all, unless the path is None. Returns the figure."""
    if path is None:
        return figure
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"Invalid value received for argument `path`. Expected a .png file. Received: {str(path)!r}")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    return figure


def displayable(images):
    """Images of 0..255 as uint8 with one channel or three: the first three of more, the first of two."""
    images = np.clip(np.round(images), 0, 255).astype("uint8")
    return images[..., :3] if images.shape[-1] >= 3 else images[..., :1]
