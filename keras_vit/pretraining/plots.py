"""Pictures of what a pre-trained model reconstructs."""

import numpy as np

from keras_vit.pictures import displayable, finish, new_figure

TITLES = ("original", "masked", "prediction")


def plot_reconstructions(reconstruction, path=None):
    """Draws images, what was left of them, and what was predicted in the gaps side by side, one image a row.

    Args:
        reconstruction: What `reconstruct` of `MaskedPatchPrediction`, `SimMIM` or `MAE` returns: three arrays of
            0..255, (number, height, width, channels). Of more than three channels the first three are shown, of two
            the first.
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
    number, height, width, _ = shapes[0]
    figure = new_figure(4.8, 1.6 * number * height / width + 0.3)
    panels = figure.subplots(number, 3, squeeze=False)
    for column, (title, part) in enumerate(zip(TITLES, parts, strict=True)):
        panels[0, column].set_title(title, fontsize=9)
        for axes, image in zip(panels[:, column], displayable(part), strict=True):
            axes.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255)
            axes.set_axis_off()
    return finish(figure, path)
