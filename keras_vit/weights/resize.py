"""Adapts arrays of a checkpoint to a model of another image size, patch size or channel count, in NumPy."""

import math

import numpy as np

from keras_vit.interpolation import POSITION_METHODS, resize_matrix


def resize_positions(grid, rows, columns, method="linear"):
    """Resizes a grid of position embeddings as one of the code bases does.

    Args:
        grid: Array, (old rows, old columns, hidden_dim).
        rows: Int, the new number of rows.
        columns: Int, the new number of columns.
        method: String. "linear": linear with the end points aligned, as the official code and big_vision do, which is
            `scipy.ndimage.zoom(grid, ..., order=1)`. "bicubic": cubic convolution with a = -0.75 about pixel centres,
            as DeiT and Hugging Face do. "bicubic_antialias": with a = -0.5 and a kernel that widens when it shrinks
            the grid, as timm does.

    Returns:
        Array, (rows, columns, hidden_dim), of the same dtype.

    Raises:
        ValueError: If the method is none of these.

    Example:

    >>> resize_positions(np.array([[[0.0], [1.0]]]), 1, 3).ravel().tolist()
    [0.0, 0.5, 1.0]

    Reference: `interpolate_posembed` of the official code; arXiv 2010.11929, section 3.2.
    """
    check_method(method)
    x = np.asarray(grid, "float64")
    x = np.einsum("rR,RCd->rCd", resize_matrix(x.shape[0], rows, method), x)
    x = np.einsum("cC,rCd->rcd", resize_matrix(x.shape[1], columns, method), x)
    return x.astype(grid.dtype)


def check_method(method):
    """Returns `method`, or raises if it is no way to resize position embeddings."""
    if method not in POSITION_METHODS:
        raise ValueError(
            "Invalid value received for argument `position_interpolation`. "
            f"Expected one of {', '.join(map(repr, POSITION_METHODS))}. Received: {method!r}"
        )
    return method


def resize_patches(kernel, patch_size):
    """Resizes a patch-embedding kernel so that it gives of resized patches what it gave of the patches themselves.

    Where patches grow, the embeddings of bilinearly enlarged images are those of the images before; where they shrink,
    the difference is the least possible in the mean square.

    Args:
        kernel: Array, (old patch height, old patch width, channels, hidden_dim).
        patch_size: (height, width), the new patch size in pixels.

    Returns:
        Array, (height, width, channels, hidden_dim), of the same dtype.

    Example:

    >>> resize_patches(np.ones((1, 1, 1, 1)), (2, 2)).ravel().round(6).tolist()
    [0.25, 0.25, 0.25, 0.25]

    Reference: FlexiViT (arXiv 2212.08013), section 3.4.
    """
    rows, columns = (
        np.linalg.pinv(resize_matrix(old, new, "bilinear").T)
        for old, new in zip(kernel.shape[:2], patch_size, strict=True)
    )
    x = np.einsum("rR,RCid->rCid", rows, np.asarray(kernel, "float64"))
    return np.einsum("cC,rCid->rcid", columns, x).astype(kernel.dtype)


def adapt_channels(kernel, in_channels):
    """Adapts a patch-embedding kernel to images of another number of channels.

    For one channel the kernel is summed over its channels: a grey image gives what the same grey in all channels would.
    For N it is tiled and rescaled by old / N, which keeps the size of the output.

    Args:
        kernel: Array, (patch height, patch width, old channels, hidden_dim).
        in_channels: Int, the new number of channels.

    Returns:
        Array, (patch height, patch width, in_channels, hidden_dim), of the same dtype.

    Example:

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
