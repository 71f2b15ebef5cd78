"""Darkens images where attention is low, and writes such images to TensorBoard."""

import os

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.images.figures import displayable
from keras_vit.images.tensorboard import TensorBoardPictures
from keras_vit.inspection.attention import FUSIONS, attention_rollout
from keras_vit.inspection.inputs import raw_pictures


def attention_overlay(images, attention) -> np.ndarray:
    """Darkens images where attention is low; returns uint8 images, (number, height, width, 1 or 3).

    Args:
        images: (number, height, width, channels), in [0, 255]. Shows three channels, or one if there are fewer.
        attention: (number, rows, columns), non-negative, from `attention_rollout`. Maps are scaled to a maximum of 1
            and resized.

    Raises:
        ValueError: If the shapes do not match.

    Example:

    >>> attention_overlay(np.full((1, 4, 4, 3), 200), [[[1.0]]]).max()
    np.uint8(200)
    """
    images, attention = images_and_attention(images, attention)
    highest = np.maximum(attention.max(axis=(1, 2), keepdims=True), 1e-30)
    mask = (attention / highest)[..., None]
    mask = ops.image.resize(mask, images.shape[1:3], interpolation="bilinear", data_format="channels_last")
    return np.round(images * np.clip(ops.convert_to_numpy(mask), 0, 1)).astype("uint8")


def images_and_attention(images, attention):
    """Returns displayable images and attention as NumPy arrays; raises ValueError if the shapes do not match."""
    images = np.asarray(ops.convert_to_numpy(images))
    attention = np.asarray(ops.convert_to_numpy(attention), "float32")
    if images.ndim != 4 or not len(images):
        raise ValueError(f"Expected images of shape (1 or more, height, width, channels). Received: {images.shape}")
    if attention.ndim != 3 or len(attention) != len(images):
        raise ValueError(f"Expected `attention` of shape ({len(images)}, rows, columns). Received: {attention.shape}")
    return displayable(images), attention


class TensorBoardAttention(TensorBoardPictures):
    """Writes attention overlays of a few images to TensorBoard during training, from `attention_rollout`.

    Args:
        log_dir: The log folder, preferably another one than `keras.callbacks.TensorBoard` uses.
        images: A few images, preprocessed as for training.
        every: Int, the number of epochs between pictures. The last epoch is always written.
        head_fusion: "mean", "max" or "min", as in `attention_rollout`.
        model: The model to inspect if it is not the fitted one, for example the student of a `Distiller`.

    Raises:
        ImportError: If TensorFlow, which writes the logs on every backend, is not installed.
        ValueError: If an argument is out of range, or the model does not have exactly one ViT.
    """

    name = "attention"

    def __init__(
        self,
        log_dir: str | os.PathLike,
        images,
        every: int = 1,
        head_fusion: str = "mean",
        model: keras.Model | None = None,
    ):
        super().__init__(log_dir, images, every)
        self.head_fusion = arguments.choice("head_fusion", head_fusion, tuple(FUSIONS))
        self.model_with_attention = model

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._pictures = raw_pictures(self.model_with_attention or self.model, self.images)

    def pictures(self):
        attention = attention_rollout(self.model_with_attention or self.model, self.images, self.head_fusion)
        return attention_overlay(self._pictures, attention)
