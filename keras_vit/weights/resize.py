"""Adapts arrays of a checkpoint to a model of another image size, patch size or channel count, in NumPy."""

import math

import numpy as np

from keras_vit.interpolation import POSITION_METHODS, resize_matrix


def resize_positions(grid, rows, columns, method="linear"):
    """Resizes a (rows, columns, hidden_dim) grid of position embeddings.

    "linear" aligns the end points, as the official code and big_vision do (`scipy.ndimage.zoom(grid, ..., order=1)`).
    "bicubic" is cubic convolution with a = -0.75 about pixel centres, as in DeiT and Hugging Face. "bicubic_antialias"
    has a = -0.5 and a kernel that widens when it shrinks the grid, as in timm.

    >>> resize_positions(np.array([[[0.0], [1.0]]]), 1, 3).ravel().tolist()
    [0.0, 0.5, 1.0]
    """
    check_method(method)
    x = np.asarray(grid, "float64")
    x = np.einsum("rR,RCd->rCd", resize_matrix(x.shape[0], rows, method), x)
    x = np.einsum("cC,rCd->rcd", resize_matrix(x.shape[1], columns, method), x)
    return x.astype(grid.dtype)


def check_method(method):
    """Raises ValueError unless `method` is a way to resize position embeddings."""
    if method not in POSITION_METHODS:
        raise ValueError(
            "Invalid value received for argument `position_interpolation`. "
            f"Expected one of {', '.join(map(repr, POSITION_METHODS))}. Received: {method!r}"
        )


def resize_patches(kernel, patch_size):
    """Resizes a (height, width, channels, hidden_dim) patch-embedding kernel to a (height, width) patch size.

    Larger patches of bilinearly enlarged images have the same embeddings as before; for smaller ones the difference is
    the least possible in the mean square (FlexiViT, arXiv 2212.08013, section 3.4).

    >>> resize_patches(np.ones((1, 1, 1, 1)), (2, 2)).ravel().round(6).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    rows, columns = (
        np.linalg.pinv(resize_matrix(old, new, "bilinear").T)
        for old, new in zip(kernel.shape[:2], patch_size, strict=True)
    )
    x = np.einsum("rR,RCid->rCid", rows, np.asarray(kernel, "float64"))
    return np.einsum("cC,rCid->rcid", columns, x).astype(kernel.dtype)


def adapt_channels(kernel, in_channels):
    """Adapts a patch-embedding kernel to images with another number of channels.

    For one channel it is summed: a grey image gives the same output as before in all channels. For N it is tiled and
    rescaled by old / N, which keeps the size of the output.

    >>> adapt_channels(np.ones((1, 1, 3, 1)), 1).ravel().tolist()
    [3.0]
    """
    old = kernel.shape[2]
    if in_channels == old:
        return kernel
    if in_channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    tiled = np.tile(kernel, (1, 1, math.ceil(in_channels / old), 1))[:, :, :in_channels]
    return tiled * np.asarray(old / in_channels, kernel.dtype)
