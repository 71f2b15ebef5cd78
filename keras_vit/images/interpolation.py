"""Interpolation methods of different code bases as matrices for one axis, in NumPy (float64) or `keras.ops`."""

import numpy as np


def resize_matrix(old, new, method, xp=np):
    """Returns the (new, old) matrix that resizes one axis: float64 in NumPy, float32 in `keras.ops`."""
    return METHODS[method](old, new, xp)


def _ends_aligned(old, new, xp):
    step = (old - 1) / xp.maximum(_number(new, xp) - 1, 1)
    return triangle(_range(new, xp)[:, None] * step - _range(old, xp)[None, :], xp)


def _centres(old, new, xp, offset=0.0):
    """Returns the centres of the new pixels in units of old pixels; `offset` is added to the new size in the ratio."""
    return (_range(new, xp) + 0.5) * (old / (_number(new, xp) + offset)) - 0.5


def _range(size, xp):
    return xp.arange(size, dtype="float64" if xp is np else "float32")


def _number(size, xp):
    """Returns a size as a float, from a range of numbers, because torch.export makes a cast size a constant."""
    return size if xp is np else _range(size, xp)[-1] + 1


def _constant(array, xp):
    """Converts a NumPy array to `xp`, since torch.export cannot trace a product of a tensor and an array."""
    return array.astype("float64") if xp is np else xp.convert_to_tensor(array.astype("float32"))


def triangle(x, xp):
    """Returns the kernel of bilinear interpolation at `x`."""
    return xp.maximum(0, 1 - xp.abs(x))


def cubic(a):
    """Returns Keys' cubic convolution kernel with parameter a."""

    def kernel(x, xp):
        x = xp.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return xp.where(x <= 1, near, xp.where(x < 2, far, xp.zeros_like(x)))

    return kernel


def _border_repeated(kernel, reach, offset=0.0):
    """Returns a method that resizes by a kernel of support `reach`, with border pixels replicated."""

    def matrix(old, new, xp):
        padded = np.arange(-reach, old + reach)
        weights = kernel(_centres(old, new, xp, offset)[:, None] - _constant(padded, xp)[None, :], xp)
        # The border pixel that each padded pixel repeats.
        repeats = np.clip(padded, 0, old - 1)[:, None] == np.arange(old)[None, :]
        return xp.matmul(weights, _constant(repeats, xp))

    return matrix


def _antialiased(kernel):
    """Returns a method whose kernel widens for downscaling. Weights are normalised inside the border."""

    def matrix(old, new, xp):
        scale = xp.maximum(old / _number(new, xp), 1)
        weights = kernel((_centres(old, new, xp)[:, None] - _range(old, xp)[None, :]) / scale, xp)
        return weights / xp.sum(weights, axis=1, keepdims=True)

    return matrix


def _geometric(old, new, xp):
    """Resizes biases of relative positions as BEiT does: linearly, between offsets whose gaps grow geometrically.

    `old`, the number of old offsets, is odd.
    """
    half, middle = old // 2, (_number(new, xp) - 1) / 2
    if not half:
        return xp.ones_like(_range(new, xp))[:, None]
    # Find the growth of the gaps for which the outermost old and new offsets coincide, by 19 bisections.
    left, right = (_constant(np.asarray(bound), xp) for bound in (1.01, 1.5))
    for _ in range(19):
        ratio = (left + right) / 2
        beyond = (1 - ratio**half) / (1 - ratio) > middle
        left, right = xp.where(beyond, left, ratio), xp.where(beyond, ratio, right)
    ahead = xp.cumsum(ratio ** _range(half, xp))
    places = xp.concatenate([-xp.flip(ahead), xp.zeros_like(ahead[:1]), ahead])
    offsets = xp.clip(_range(new, xp) - middle, places[0], places[-1])[:, None]
    gaps = places[1:] - places[:-1]
    # The weight of the right neighbour of each new offset.
    shares = xp.clip((offsets - places[:-1]) / gaps, 0, 1)
    ones = xp.ones_like(shares[:, :1])
    return xp.concatenate([ones, shares], axis=1) - xp.concatenate([shares, xp.zeros_like(ones)], axis=1)


# "linear" aligns end points, as in the official code and big_vision (scipy.ndimage.zoom, order 1). "bicubic" has
# a = -0.75 at pixel centres, as in DeiT and Hugging Face. "bicubic_antialias" has a = -0.5 and a kernel that widens for
# downscaling, as in timm. "bicubic_offset" adds 0.1 to the new size in the ratio, as in DINO. "bilinear" is only for
# patch-embedding kernels and, as in CoAtNet's paper, tables of relative positions. "geometric" is for these tables in
# timm and comes from BEiT's code.
METHODS = {
    "linear": _ends_aligned,
    "bicubic": _border_repeated(cubic(-0.75), reach=3),
    "bicubic_antialias": _antialiased(cubic(-0.5)),
    "bicubic_offset": _border_repeated(cubic(-0.75), reach=3, offset=0.1),
    "bilinear": _border_repeated(triangle, reach=2),
    "geometric": _geometric,
}
POSITION_METHODS = ("linear", "bicubic", "bicubic_antialias", "bicubic_offset")
TABLE_METHODS = ("bilinear", "geometric")
