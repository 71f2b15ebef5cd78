"""What the layers of the ResNets compute, in NumPy and float64."""

import numpy as np


def standardize(kernel, epsilon, epsilon_added_to):
    mean, std = kernel.mean((0, 1, 2)), kernel.std((0, 1, 2))
    return (kernel - mean) / (std + epsilon if epsilon_added_to == "std" else np.sqrt(std**2 + epsilon))


def pad(x, kernel_size, strides, padding, value=0.0):
    """Pads height and width: "same" as little as is needed, the odd pixel last; "symmetric" by half the kernel."""
    widths = [(0, 0)]
    for side, size, stride in zip(x.shape[1:3], kernel_size, strides, strict=True):
        total = max((-(-side // stride) - 1) * stride + size - side, 0)
        widths.append((total // 2, total - total // 2) if padding == "same" else (size // 2, size // 2))
    return np.pad(x, [*widths, (0, 0)], constant_values=value)


def windows(x, kernel_size, strides):
    """(batch, rows, columns, channels, kernel height, kernel width)."""
    cut = np.lib.stride_tricks.sliding_window_view(x, kernel_size, axis=(1, 2))
    return cut[:, :: strides[0], :: strides[1]]


def convolve(x, kernel, strides, padding):
    size = kernel.shape[:2]
    return np.einsum("brcikl,klio->brco", windows(pad(x, size, strides, padding), size, strides), kernel)


def max_pool(x, size, stride, value):
    x = pad(x, (size, size), (stride, stride), "symmetric", value)
    return windows(x, (size, size), (stride, stride)).max((-2, -1))


def group_norm(x, gamma, beta, groups, epsilon):
    grouped = x.reshape(*x.shape[:3], groups, -1)
    mean, variance = (f((1, 2, 4), keepdims=True) for f in (grouped.mean, grouped.var))
    return ((grouped - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * gamma + beta
