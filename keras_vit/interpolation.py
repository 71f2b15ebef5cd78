"""The ways in which code bases resize a grid of position embeddings, each as a matrix for one axis.

Each function takes `xp`, NumPy or `keras.ops`: checkpoints are resized in float64 when they are loaded, and a model of
any size resizes its own table at run time, where the new size may be a tensor.
"""

import numpy as np


def resize_matrix(old, new, method, xp=np):
    """The matrix that resizes one axis of `old` places to `new`: (new, old), float64, or a float32 tensor.

    `method` is a key of METHODS. `new` may be an integer tensor if `xp` is `keras.ops`.
    """
    return METHODS[method](old, new, xp)


def _ends_aligned(old, new, xp):
    step = (old - 1) / xp.maximum(_number(new, xp) - 1, 1)
    return _triangle(_range(new, xp)[:, None] * step - _range(old, xp)[None, :], xp)


def _centres(old, new, xp):
    """The centres of the new pixels in units of the old ones."""
    return (_range(new, xp) + 0.5) * (old / _number(new, xp)) - 0.5


def _range(size, xp):
    return xp.arange(size, dtype="float64" if xp is np else "float32")


def _number(size, xp):
    """A size as a float, counted since a cast would tie torch.export to the size of its example."""
    return size if xp is np else _range(size, xp)[-1] + 1


def _constant(array, xp):
    """A NumPy array as one of `xp`: torch.export cannot trace a product of a tensor and an array."""
    return array.astype("float64") if xp is np else xp.convert_to_tensor(array.astype("float32"))


def _triangle(x, xp):
    return xp.maximum(0, 1 - xp.abs(x))


def _cubic(a):
    """Keys' cubic convolution kernel with parameter a."""

    def kernel(x, xp):
        x = xp.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return xp.where(x <= 1, near, xp.where(x < 2, far, xp.zeros_like(x)))

    return kernel


def _border_repeated(kernel, reach):
    """Resizes by a kernel of that reach, with the border pixels repeated outwards."""

    def matrix(old, new, xp):
        padded = np.arange(-reach, old + reach)
        weights = kernel(_centres(old, new, xp)[:, None] - _constant(padded, xp)[None, :], xp)
        # The pixel that each of the padded ones repeats.
        repeats = np.clip(padded, 0, old - 1)[:, None] == np.arange(old)[None, :]
        return xp.matmul(weights, _constant(repeats, xp))

    return matrix


def _antialiased(kernel):
    """Resizes by a kernel as wide as the larger pixel, normalised over the pixels inside the border."""

    def matrix(old, new, xp):
        scale = xp.maximum(old / _number(new, xp), 1)
        weights = kernel((_centres(old, new, xp)[:, None] - _range(old, xp)[None, :]) / scale, xp)
        return weights / xp.sum(weights, axis=1, keepdims=True)

    return matrix


# Of position embeddings: "linear" with the end points aligned, as the official code and big_vision
# (scipy.ndimage.zoom, order 1); "bicubic" with a = -0.75 about pixel centres, as DeiT and Hugging Face;
# "bicubic_antialias" with a = -0.5 and a kernel that widens where it shrinks the grid, as timm. "bilinear" is of images
# alone, which patches are resized with.
METHODS = {
    "linear": _ends_aligned,
    "bicubic": _border_repeated(_cubic(-0.75), reach=3),
    "bicubic_antialias": _antialiased(_cubic(-0.5)),
    "bilinear": _border_repeated(_triangle, reach=2),
}
POSITION_METHODS = ("linear", "bicubic", "bicubic_antialias")
