"""Pictures of what a pre-trained model reconstructs."""

from pathlib import Path

import numpy as np

from keras_vit.files import replacing

TITLES = ("original", "masked", "prediction")


def plot_reconstructions(reconstruction, path=None):
    """Draws images, what was left of them, and what was predicted in the gaps side by side, one image a row.

    Args:
        reconstruction: What `reconstruct` of `MaskedPatchPrediction`, `SimMIM` or `MAE` returns: three arrays of
            0..255, (number, height, width, channels). Of other than one or three channels see `displayable`.
        path: Path of a .png file to write, or None. An existing file is replaced; a failed write leaves nothing behind.

    Returns:
        A `matplotlib.figure.Figure` with three panels an image.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If the arrays are no images of one shape, or `path` does not end in .png.

    Example:

    >>> plot_reconstructions(model.reconstruct(images[:8]), "reconstructions.png")  # doctest: +SKIP
    """
    parts = [np.asarray(part) for part in reconstruction]
    shapes = [part.shape for part in parts]
    if len(parts) != 3 or len(set(shapes)) != 1 or parts[0].ndim != 4 or not len(parts[0]):
        raise ValueError(
            "Expected `reconstruction` to be three arrays of one shape, (number, height, width, channels), with at "
            f"least one image. Received: shapes {shapes}"
        )
    if path is not None and Path(path).suffix.lower() != ".png":
        raise ValueError(f"Invalid value received for argument `path`. Expected a .png file. Received: {str(path)!r}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('Plots need matplotlib: pip install "keras-vit[inspect]"') from error
    number, height, width, _ = shapes[0]
    # A Figure of its own, unlike pyplot, needs no display and leaves no state behind.
    figure = Figure(figsize=(4.8, 1.6 * number * height / width + 0.3), layout="constrained")
    panels = figure.subplots(number, 3, squeeze=False)
    for column, (title, part) in enumerate(zip(TITLES, parts, strict=True)):
        panels[0, column].set_title(title, fontsize=9)
        for axes, image in zip(panels[:, column], displayable(part), strict=True):
            axes.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255)
            axes.set_axis_off()
    if path is not None:
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png", dpi=110)
    return figure


def displayable(images):
    """Images of 0..255 as uint8 with one channel or three: of more the first three, of two the first."""
    images = np.clip(np.round(images), 0, 255).astype("uint8")
    return images[..., :3] if images.shape[-1] >= 3 else images[..., :1]
