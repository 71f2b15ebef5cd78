"""Adapts arrays of a checkpoint to a model of another image size or channel count, in NumPy."""

import math

import numpy as np


def resize_linear(grid, rows, columns):
    """Resizes a grid of position embeddings linearly with the end points aligned, as the official code does.

    Args:
        grid: Array, (old rows, old columns, hidden_dim).
        rows: Int, the new number of rows.
        columns: Int, the new number of columns.

    Returns:
        Array, (rows, columns, hidden_dim), of the same dtype. It equals `scipy.ndimage.zoom(grid, ..., order=1)`.

    Example:

    >>> resize_linear(np.array([[[0.0], [1.0]]]), 1, 3).ravel().tolist()
    [0.0, 0.5, 1.0]

    Reference: `interpolate_posembed` of the official code; arXiv 2010.11929, section 3.2.
    """
    x = np.asarray(grid, "float64")
    x = np.einsum("rR,RCd->rCd", _linear_matrix(x.shape[0], rows), x)
    x = np.einsum("cC,rCd->rcd", _linear_matrix(x.shape[1], columns), x)
    return x.astype(grid.dtype)


def _linear_matrix(old, new):
    places = np.arange(new) * ((old - 1) / max(new - 1, 1))
    return np.maximum(0, 1 - np.abs(places[:, None] - np.arange(old)[None, :]))


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
