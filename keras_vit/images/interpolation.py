"""The interpolation methods of different code bases, as matrices that resize one axis."""

import numpy as np


def resize_matrix(old, new, method, xp=np):
    """Returns the (new, old) matrix that resizes an axis. NumPy as `xp` gives float64; `keras.ops` gives float32."""
    return METHODS[method](old, new, xp)


def _ends_aligned(old, new, xp):
    step = (old - 1) / xp.maximum(_number(new, xp) - 1, 1)
    return triangle(_range(new, xp)[:, None] * step - _range(old, xp)[None, :], xp)


def _centres(old, new, xp, offset=0.0):
    """Returns the centres of the new pixels in units of old pixels, with the scale `old / (new + offset)`."""
    return (_range(new, xp) + 0.5) * (old / (_number(new, xp) + offset)) - 0.5


def _range(size, xp):
    return xp.arange(size, dtype="float64" if xp is np else "float32")


def _number(size, xp):
    """Converts a size to a float through a range. If the size were cast, torch.export would make it a constant."""
    return size if xp is np else _range(size, xp)[-1] + 1


def _constant(array, xp):
    """Converts a NumPy array to a tensor of `xp`, because torch.export cannot multiply a tensor and an array."""
    return array.astype("float64") if xp is np else xp.convert_to_tensor(array.astype("float32"))


def triangle(x, xp):
    """Returns the kernel of bilinear interpolation at `x`."""
    return xp.maximum(0, 1 - xp.abs(x))


def cubic(a):
    """Returns the cubic convolution kernel of R. Keys (1981) with the parameter `a`."""

    def kernel(x, xp):
        x = xp.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return xp.where(x <= 1, near, xp.where(x < 2, far, xp.zeros_like(x)))

    return kernel


def _border_repeated(kernel, reach, offset=0.0):
    """Returns a method that resizes with `kernel`, after repeating the border pixels `reach` times on each side."""

    def matrix(old, new, xp):
        padded = np.arange(-reach, old + reach)
        weights = kernel(_centres(old, new, xp, offset)[:, None] - _constant(padded, xp)[None, :], xp)
        # The pixel that each padded position repeats, as a one-hot row.
        repeats = np.clip(padded, 0, old - 1)[:, None] == np.arange(old)[None, :]
        return xp.matmul(weights, _constant(repeats, xp))

    return matrix


def _antialiased(kernel):
    """Returns a method whose kernel is wider for downscaling. Pixels outside the axis get no weight."""

    def matrix(old, new, xp):
        scale = xp.maximum(old / _number(new, xp), 1)
        weights = kernel((_centres(old, new, xp)[:, None] - _range(old, xp)[None, :]) / scale, xp)
        return weights / xp.sum(weights, axis=1, keepdims=True)

    return matrix


def _geometric(old, new, xp):
    """Resizes relative-position biases as BEiT does: linearly between old offsets whose gaps grow geometrically."""
    half, middle = old // 2, (_number(new, xp) - 1) / 2
    if not half:
        return xp.ones_like(_range(new, xp))[:, None]
    # The gaps between offsets grow by a ratio. Find it by 19 bisections: the last old and new offsets must be equal.
    left, right = (_constant(np.asarray(bound), xp) for bound in (1.01, 1.5))
    for _ in range(19):
        ratio = (left + right) / 2
        beyond = (1 - ratio**half) / (1 - ratio) > middle
        left, right = xp.where(beyond, left, ratio), xp.where(beyond, ratio, right)
    ahead = xp.cumsum(ratio ** _range(half, xp))
    places = xp.concatenate([-xp.flip(ahead), xp.zeros_like(ahead[:1]), ahead])
    offsets = xp.clip(_range(new, xp) - middle, places[0], places[-1])[:, None]
    gaps = places[1:] - places[:-1]
    # Each new offset is between two old offsets. `shares` is the weight of the right one.
    shares = xp.clip((offsets - places[:-1]) / gaps, 0, 1)
    ones = xp.ones_like(shares[:, :1])
    return xp.concatenate([ones, shares], axis=1) - xp.concatenate([shares, xp.zeros_like(ones)], axis=1)


# "linear" aligns end points, as in the official code and big_vision (scipy.ndimage.zoom, order 1). "bicubic" has
# a = -0.75 and aligns pixel centres, as in DeiT and Hugging Face. "bicubic_antialias" has a = -0.5 and a kernel that is
# wider for downscaling, as in timm. "bicubic_offset" is "bicubic" with the scale old / (new + 0.1), as in DINO.
# "bilinear" is only for patch-embedding kernels and, as in CoAtNet's paper, for relative-position biases. "geometric"
# resizes relative-position biases as timm and BEiT do.
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
