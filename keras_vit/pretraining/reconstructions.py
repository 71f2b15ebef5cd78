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
        reconstruction: From `reconstruct` of a model: three arrays in [0, 255], (number, height, width, channels).
            Shows the first three channels, or the first of two channels.
        path: As in `keras_vit.inspection.plot_attention_rollout`; the same errors are raised.

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
    """Writes original, masked and predicted images to TensorBoard during training, always with the same masks.

    `log_dir`, `images` and `every` are as in `keras_vit.inspection.TensorBoardAttention`; the same errors are raised.

    Raises:
        ImportError: If TensorFlow, which writes the logs on every backend, is not installed.
        ValueError: If `every` is not a positive integer.
    """

    name = "reconstructions"

    def pictures(self):
        return np.concatenate([displayable(part) for part in self.model.reconstruct(self.images)], axis=2)
