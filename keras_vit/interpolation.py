"""The ways in which code bases resize a grid of position embeddings, each as a matrix for one axis.

Each function takes `xp`, NumPy or `keras.ops`: checkpoints are resized in float64 before a model sees them, and a model
of any size resizes its own table at run time, where the new size may be a tensor.
"""

import numpy as np


def _ends_aligned(old, new, xp):
    step = (old - 1) / xp.maximum(_number(new, xp) - 1, 1)
    places = xp.arange(new, dtype=_dtype(xp)) * step
    return xp.maximum(0, 1 - xp.abs(places[:, None] - xp.arange(old, dtype=_dtype(xp))[None, :]))


def _dtype(xp):
    return "float64" if xp is np else "float32"


def _number(new, xp):
    """A size as a float. It is counted, since a cast would tie torch.export to the size of its example."""
    return new if xp is np else xp.arange(new, dtype=_dtype(xp))[-1] + 1


def _constant(array, xp):
    """A NumPy array as one of `xp`: torch.export cannot trace a product of a tensor and an array."""
    array = array.astype(_dtype(xp))
    return array if xp is np else xp.convert_to_tensor(array)


def _centres(old, new, xp):
    """Where the centres of the new pixels lie among the old ones."""
    return (xp.arange(new, dtype=_dtype(xp)) + 0.5) * (old / _number(new, xp)) - 0.5


def _cubic(a):
    """Keys' cubic convolution kernel of parameter a."""

    def kernel(x, xp):
        x = xp.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return xp.where(x <= 1, near, xp.where(x < 2, far, xp.zeros_like(x)))

    return kernel


def _triangle(x, xp):
    return xp.maximum(0, 1 - xp.abs(x))


def _border_repeated(kernel, reach):
    """Resize matrices of a kernel of that reach, with the border pixels repeated outwards."""

    def matrix(old, new, xp):
        padded = np.arange(-reach, old + reach)
        weights = kernel(_centres(old, new, xp)[:, None] - _constant(padded, xp)[None, :], xp)
        # Which pixel each of the padded ones repeats.
        repeats = np.clip(padded, 0, old - 1)[:, None] == np.arange(old)[None, :]
        return xp.matmul(weights, _constant(repeats, xp))

    return matrix


def _antialiased(kernel):
    """Resize matrices of a kernel as wide as the larger pixel, normalised over the pixels inside the border."""

    def matrix(old, new, xp):
        scale = xp.maximum(old / _number(new, xp), 1)
        places = xp.arange(old, dtype=_dtype(xp))
        weights = kernel((_centres(old, new, xp)[:, None] - places[None, :]) / scale, xp)
        return weights / xp.sum(weights, axis=1, keepdims=True)

    return matrix


# "linear": linear with the end points aligned, as the official code and big_vision do: scipy.ndimage.zoom, order 1.
# "bicubic": cubic convolution with a = -0.75 about pixel centres, as DeiT and Hugging Face do. "bicubic_antialias":
# with a = -0.5 and a kernel that widens where it shrinks the grid, as timm does.
METHODS = {
    "linear": _ends_aligned,
    "bicubic": _border_repeated(_cubic(-0.75), reach=3),
    "bicubic_antialias": _antialiased(_cubic(-0.5)),
    # Of images, not of embeddings: what patches are resized for.
    "bilinear": _border_repeated(_triangle, reach=2),
}
POSITION_METHODS = ("linear", "bicubic", "bicubic_antialias")


def resize_matrix(old, new, method, xp=np):
    """The matrix that resizes one axis.

    Args:
        old: Int, the number of places now.
        new: Int, or an integer tensor where `xp` is `keras.ops`: the number of places wanted.
        method: A key of METHODS.
        xp: `numpy` or `keras.ops`.

    Returns:
        (new, old): a float64 array, or a float32 tensor.

    Example:

    >>> resize_matrix(2, 3, "linear").tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    return METHODS[method](old, new, xp)
