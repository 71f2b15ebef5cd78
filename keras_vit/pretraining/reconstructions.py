"""Plots of reconstructed images, and a TensorBoard callback."""

import os

import numpy as np

from keras_vit import arguments
from keras_vit.images.figures import displayable, finish, new_panels, show
from keras_vit.images.tensorboard import TensorBoardPictures
from keras_vit.prediction.inputs import real_array

TITLES = ("original", "masked", "prediction")


def plot_reconstructions(reconstruction, path: str | os.PathLike | None = None):
    """Plots original, masked and predicted images side by side, one row per image, and returns the figure.

    Args:
        reconstruction: The result of a model's `reconstruct`: three arrays in [0, 255], (number, height, width,
            channels). The first three channels are shown, or only the first channel if there are fewer than three.
        path: Path of a .png file to write, or None. An existing file is replaced.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If the arrays are not images of one shape, or `path` does not end in .png.

    Example:
    >>> plot_reconstructions(model.reconstruct(images[:8]), "reconstructions.png")  # doctest: +SKIP
    """
    parts = arguments.several("reconstruction", reconstruction)
    parts = [real_array("reconstruction", part) for part in parts]
    shapes = [part.shape for part in parts]
    if len(parts) != 3 or len(set(shapes)) != 1 or parts[0].ndim != 4 or not len(parts[0]):
        expected = "three arrays of one shape, (number, height, width, channels), with at least one image"
        raise ValueError(f"Expected `reconstruction` to be {expected}. Received: shapes {shapes}")
    number, height, width, _ = shapes[0]
    figure, panels = new_panels(3 * number, 3, (4.8, 1.6 * number * height / width + 0.3))
    panels = panels.reshape(number, 3)
    for column, (title, part) in enumerate(zip(TITLES, parts, strict=True)):
        panels[0, column].set_title(title, fontsize=9)
        for axes, image in zip(panels[:, column], displayable(part), strict=True):
            show(axes, image)
            axes.set_axis_off()
    return finish(figure, path)


class TensorBoardReconstructions(TensorBoardPictures):
    """Callback that writes original, masked and predicted images to TensorBoard, always with the same masks.

    Args:
        log_dir, images, every: As in `keras_vit.inspection.TensorBoardAttention`.

    Raises:
        ImportError: If TensorFlow, which writes the logs on every backend, is not installed.
        ValueError: If `every` is not a positive integer.
    """

    name = "reconstructions"

    def pictures(self):
        return np.concatenate([displayable(part) for part in self.model.reconstruct(self.images)], axis=2)
