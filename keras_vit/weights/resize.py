"""Adapts arrays of a checkpoint to another image size, patch size or channel count, in NumPy."""

import math

import numpy as np

from keras_vit.images.interpolation import resize_matrix


def resize_positions(grid, rows, columns, method="linear"):
    """Resizes a (rows, columns, hidden_dim) grid of position embeddings by a `method` of `interpolation.METHODS`."""
    x = np.asarray(grid, "float64")
    x = np.einsum("rR,RCd->rCd", resize_matrix(x.shape[0], rows, method), x)
    x = np.einsum("cC,rCd->rcd", resize_matrix(x.shape[1], columns, method), x)
    return x.astype(grid.dtype)


def resize_patches(kernel, patch_size):
    """Resizes a (height, width, channels, hidden_dim) kernel to `patch_size` with FlexiViT's pseudo-inverse."""
    # See arXiv 2212.08013, section 3.4. On larger patches, the new kernel has the same outputs as the old kernel on the
    # original patches. On smaller patches, the outputs are as close as possible.
    rows, columns = (
        np.linalg.pinv(resize_matrix(old, new, "bilinear").T)
        for old, new in zip(kernel.shape[:2], patch_size, strict=True)
    )
    x = np.einsum("rR,RCid->rCid", rows, np.asarray(kernel, "float64"))
    return np.einsum("cC,rCid->rcid", columns, x).astype(kernel.dtype)


def adapt_channels(kernel, in_channels):
    """Adapts a patch-embedding kernel to another number of image channels."""
    old = kernel.shape[2]
    if in_channels == old:
        return kernel
    # Add the kernels of all channels. A gray image then gives the same output as an RGB image with equal channels.
    if in_channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    # Rescale the kernel, so that the output keeps its magnitude.
    tiled = np.tile(kernel, (1, 1, math.ceil(in_channels / old), 1))[:, :, :in_channels]
    return tiled * np.asarray(old / in_channels, kernel.dtype)
