"""Random images, and their patches in NumPy."""

import numpy as np


def raw_images(number, height=16, width=16, channels=3):
    return np.random.default_rng(0).integers(0, 256, (number, height, width, channels)).astype("uint8")


def numpy_patches(images, patch=4):
    """Returns the flattened whole patches, (batch, num_patches, patch**2 * channels)."""
    batch, channels = len(images), images.shape[-1]
    rows, columns = images.shape[1] // patch, images.shape[2] // patch
    images = images[:, : rows * patch, : columns * patch]
    cut = images.reshape(batch, rows, patch, columns, patch, channels).transpose(0, 1, 3, 2, 4, 5)
    return cut.reshape(batch, rows * columns, patch**2 * channels)
