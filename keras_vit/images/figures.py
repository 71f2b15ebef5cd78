"""Draws images and plots with matplotlib, without pyplot's global state."""

import math
from pathlib import Path

import numpy as np

from keras_vit import arguments
from keras_vit.files import replacing


def new_figure(width, height):
    """Returns an empty `matplotlib.figure.Figure` of `width` x `height` inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install matplotlib") from error
    return Figure(figsize=(width, height), layout="constrained")


def new_panels(number, across, size):
    """Returns a figure of `size`, (width, height) in inches, and an array of `number` axes, with `across` per row."""
    figure = new_figure(*size)
    panels = figure.subplots(math.ceil(number / across), across, squeeze=False).ravel()
    for axes in panels[number:]:
        axes.remove()
    return figure, panels[:number]


def show(axes, image, vmax=255, **options):
    """Draws an image, (height, width, 1 or 3), on a matplotlib `axes` without ticks."""
    image = image[..., 0] if image.shape[-1] == 1 else image
    axes.imshow(image, cmap="gray", vmin=0, vmax=vmax, **options)
    axes.set(xticks=[], yticks=[])


def finish(figure, path):
    """Writes a figure to a .png file if `path` is not None; returns the figure."""
    if path is None:
        return figure
    path = Path(arguments.path("path", path))
    if path.suffix.lower() != ".png":
        raise arguments.invalid("path", "a .png file", str(path))
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    return figure


def literal(text):
    """Returns `text` for matplotlib, which would draw the text between two dollar signs as a formula."""
    return text.replace("$", r"\$")


def displayable(images):
    """Converts images of 0..255 to uint8. Keeps the first 3 channels, or only the first if there are fewer than 3."""
    images = np.clip(np.round(images), 0, 255).astype("uint8")
    return images[..., :3] if images.shape[-1] >= 3 else images[..., :1]
