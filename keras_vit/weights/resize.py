"""Adapts arrays of a checkpoint to a model of another image size, patch size or channel count, in NumPy."""

import math

import numpy as np


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
    matrix = POSITION_METHODS[check_method(method)]
    x = np.asarray(grid, "float64")
    x = np.einsum("rR,RCd->rCd", matrix(x.shape[0], rows), x)
    x = np.einsum("cC,rCd->rcd", matrix(x.shape[1], columns), x)
    return x.astype(grid.dtype)


def check_method(method):
    """Returns `method`, or raises if it is none of POSITION_METHODS."""
    if method not in POSITION_METHODS:
        raise ValueError(
            "Invalid value received for argument `position_resize`. "
            f"Expected one of {', '.join(map(repr, POSITION_METHODS))}. Received: {method!r}"
        )
    return method


def _ends_aligned(old, new):
    places = np.arange(new) * ((old - 1) / max(new - 1, 1))
    return np.maximum(0, 1 - np.abs(places[:, None] - np.arange(old)[None, :]))


def _triangle(x):
    return np.maximum(0, 1 - np.abs(x))


def _cubic(a):
    """Keys' cubic convolution kernel of parameter a."""

    def kernel(x):
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    return kernel


def _centres(old, new):
    """Where the centres of the new pixels lie among the old ones."""
    return (np.arange(new) + 0.5) * (old / new) - 0.5


def _border_repeated(kernel, reach):
    """Resize matrices of a kernel of that reach, with the border pixels repeated outwards."""

    def matrix(old, new):
        padded = np.arange(-reach, old + reach)
        weights = kernel(_centres(old, new)[:, None] - padded[None, :])
        result = np.zeros((new, old))
        for place, column in zip(np.clip(padded, 0, old - 1), weights.T, strict=True):
            result[:, place] += column
        return result

    return matrix


def _antialiased(kernel):
    """Resize matrices of a kernel as wide as the larger pixel, normalised over the pixels inside the border."""

    def matrix(old, new):
        scale = max(old / new, 1)
        weights = kernel((_centres(old, new)[:, None] - np.arange(old)[None, :]) / scale)
        return weights / weights.sum(axis=1, keepdims=True)

    return matrix


POSITION_METHODS = {
    "linear": _ends_aligned,
    "bicubic": _border_repeated(_cubic(-0.75), reach=3),
    "bicubic_antialias": _antialiased(_cubic(-0.5)),
}
_image_resize = _border_repeated(_triangle, reach=2)


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
        np.linalg.pinv(_image_resize(old, new).T) for old, new in zip(kernel.shape[:2], patch_size, strict=True)
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
