"""RandAugment's operations on uint8 images (height, width, 3).

`OFFICIAL` and `TIMM` contain the operations by name, as functions of (image, m, s, at). m is magnitude / 10, a float64
scalar. s is a random sign, -1 or 1. at is a random position (y, x), as shares of the image's height and width.

Reference: arXiv 1909.13719; `autoaugment.py` of google-research/big_vision, with the warps of tensorflow-addons;
`auto_augment.py` of timm, with Pillow's operations.
"""

import itertools
import math

from keras_vit.data.source import tf


def size(image):
    """Returns the (height, width) of an image."""
    return tf.unstack(tf.shape(image)[:2])


def blend(first, second, factor):
    """Blends two images. Factor 0 gives the first image and 1 the second; a factor above 1 goes beyond the second."""
    first, second = tf.cast(first, "float32"), tf.cast(second, "float32")
    mixed = first + tf.cast(factor, "float32") * (second - first)
    return tf.cast(tf.clip_by_value(mixed, 0.0, 255.0), "uint8")


def autocontrast(image, dtype):
    """Stretches each channel to 0..255. `dtype` is the dtype of the computation."""
    low, high = (tf.cast(f(image, (0, 1)), dtype) for f in (tf.reduce_min, tf.reduce_max))
    scale = 255 / (high - low)
    stretched = tf.clip_by_value(tf.cast(image, dtype) * scale + -low * scale, 0, 255)
    return tf.where(high > low, tf.cast(stretched, "uint8"), image)


def equalize(image):
    """Equalizes the histogram of each channel."""
    # To count the values of all channels at once, add 256 to the second channel and 512 to the third channel.
    values = tf.cast(image, "int32") + tf.constant([0, 256, 512])
    counts = tf.reshape(tf.math.bincount(tf.reshape(values, [-1]), minlength=768, maxlength=768), (3, 256))
    most = tf.gather(counts, tf.cast(tf.reduce_max(image, (0, 1)), "int32"), batch_dims=1)
    step = (tf.reduce_sum(counts, 1) - most)[:, None] // 255
    table = (tf.cumsum(counts, 1, exclusive=True) + step // 2) // tf.maximum(step, 1)
    table = tf.where(step == 0, tf.range(256)[None], tf.minimum(table, 255))
    return tf.gather(tf.reshape(tf.cast(table, "uint8"), [-1]), values)


def posterize(image, shift):
    """Sets the lowest `shift` bits of each value to 0."""
    return tf.bitwise.bitwise_and(image, tf.cast(256 - tf.bitwise.left_shift(1, shift), "uint8"))


def solarize(image, threshold):
    """Inverts values at or above `threshold`."""
    return tf.where(tf.cast(image, "int32") < threshold, image, 255 - image)


def solarize_add(image, addition):
    """Adds `addition` to values below 128."""
    added = tf.cast(tf.minimum(tf.cast(image, "int32") + addition, 255), "uint8")
    return tf.where(image < 128, added, image)


def sharpness(image, factor, rounding):
    """Blends a smoothed image (factor 0) and the image (factor 1), and keeps the border. `rounding` is 0.5 or 0."""
    height, width = size(image)
    pixels = tf.cast(image, "float32")
    # This sum takes half of the time of a 3 x 3 convolution with the weights 1/13 (5/13 in the middle), and has exactly
    # the same rounding errors.
    side, middle = pixels * (tf.constant(1.0) / 13), pixels * (tf.constant(5.0) / 13)
    smooth = rounding
    for y, x in itertools.product(range(3), range(3)):
        smooth += (middle if y == x == 1 else side)[y : height - 2 + y, x : width - 2 + x]
    smooth = tf.cast(tf.clip_by_value(smooth, 0.0, 255.0), "uint8")
    border, inside = [[1, 1], [1, 1], [0, 0]], tf.ones_like(smooth, "bool")
    return blend(tf.where(tf.pad(inside, border), tf.pad(smooth, border), image), image, factor)


def cutout(image, pad, at):
    """Fills a square of side 2 * `pad` with gray. Its center is at the random position `at` in the image."""
    near = []
    for length, place in zip(size(image), tf.unstack(at), strict=True):
        centre, index = tf.cast(place * tf.cast(length, "float32"), "int32"), tf.range(length)
        near.append((index >= centre - pad) & (index < centre + pad))
    return tf.where((near[0][:, None] & near[1])[..., None], tf.constant(128, "uint8"), image)


def official_contrast(image, factor):
    """Blends gray (factor 0) and the image (factor 1). As in big_vision, the gray value is min(h * w // 256, 255)."""
    height, width = size(image)
    return blend(tf.minimum(height * width // 256, 255), image, factor)


def official_warp(image, matrix):
    """Takes the nearest pixel at (ax + by + c, dx + ey + f) for each (x, y); `matrix` is (a, b, c, d, e, f)."""
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=tf.cast([[*matrix, 0, 0]], "float32"),
        output_shape=tf.shape(image)[:2],
        fill_value=128.0,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]


def official_rotate(image, degrees):
    """Rotates an image around its center."""
    angle = tf.cast(degrees, "float32") * (math.pi / 180)
    height, width = (tf.cast(side, "float32") - 1 for side in size(image))
    cos, sin = tf.cos(angle), tf.sin(angle)
    x, y = (width - (cos * width - sin * height)) / 2, (height - (sin * width + cos * height)) / 2
    return official_warp(image, (cos, -sin, x, sin, cos, y))


def luma(image):
    """Returns Pillow's grayscale image, int32 (height, width, 1)."""
    return (tf.reduce_sum(tf.cast(image, "int32") * [19595, 38470, 7471], -1, keepdims=True) + 32768) // 65536


def timm_contrast(image, factor):
    """Blends the image's mean gray value (factor 0) and the image (factor 1)."""
    return blend(tf.cast(tf.reduce_mean(tf.cast(luma(image), "float64")) + 0.5, "int32"), image, factor)


def cubic(a, b, c, d, t):
    """Returns Pillow's cubic interpolation of four pixels in a row, a, b, c and d, from b (t = 0) to c (t = 1)."""
    return b + t * (c - a + t * (2 * (a - b) + c - d + t * (b - a + d - c)))


def filled(inside, warped):
    """Returns the warped image as uint8, with ImageNet's mean color where `inside` is False."""
    warped = tf.cast(tf.clip_by_value(warped, 0.0, 255.0), "uint8")
    return tf.where(inside[..., None], warped, tf.constant([124, 116, 104], "uint8"))


def source(place, length):
    """Returns (is `place` in the line, index of the last pixel centered at or before it, distance to this center)."""
    start = tf.floor(place - 0.5)
    return (
        (place >= 0) & (place < tf.cast(length, "float64")),
        tf.cast(start, "int32"),
        tf.cast(place - 0.5 - start, "float32"),
    )


def centers(length):
    """Returns the positions of the centers of `length` pixels: 0.5, 1.5, ..."""
    return tf.cast(tf.range(length), "float64") + 0.5


def timm_warp(image, x_row, y_row):
    """Interpolates bicubically at (ax + by + c, dx + ey + f) for each (x, y), with the rows (a, b, c) and (d, e, f)."""
    height, width = size(image)
    x, y = centers(width)[None], centers(height)[:, None]
    inside_x, column, across = source(x_row[0] * x + x_row[1] * y + x_row[2], width)
    inside_y, line, down = source(y_row[0] * x + y_row[1] * y + y_row[2], height)
    # Window i contains the pixels i - 2 to i + 1 of a line, so that one index reads these four pixels at once.
    padded = tf.concat([image[:, :1]] * 2 + [image] + [image[:, -1:]] * 2, 1)
    windows = tf.reshape(tf.concat([padded[:, i : i + width + 1] for i in range(4)], -1), (-1, 12))
    window = tf.clip_by_value(column + 1, 0, width)

    def at(line):
        return tf.cast(tf.gather(windows, tf.clip_by_value(line, 0, height - 1) * (width + 1) + window), "float32")

    pixels = cubic(*(at(line + i) for i in (-1, 0, 1, 2)), down[..., None])
    return filled(inside_x & inside_y, cubic(*tf.split(pixels, 4, -1), across[..., None]))


def timm_shift(image, shear, offset):
    """Does the same as `timm_warp` at (x + shear * y + offset, y), in a third of the time by shifting lines."""
    height, width = size(image)
    first = 0.5 + shear * centers(height) + offset
    inside, _, _ = source(first[:, None] - 0.5 + centers(width), width)
    _, start, fraction = source(first, width)
    columns = tf.clip_by_value(start[:, None] + tf.range(-1, width + 2), 0, width - 1)
    lines = tf.gather(tf.reshape(image, (-1, 3)), tf.range(height)[:, None] * width + columns)
    # Put all channels of a line into one row, because all numbers of a line have the same interpolation weights.
    lines = tf.reshape(tf.cast(lines, "float32"), (height, -1))
    warped = cubic(*(lines[:, 3 * i : 3 * (width + i)] for i in range(4)), fraction[:, None])
    return filled(inside, tf.reshape(warped, (height, width, 3)))


def upright(image, shear, offset):
    """Does the same as `timm_shift` along y instead of x."""
    return tf.transpose(timm_shift(tf.transpose(image, (1, 0, 2)), shear, offset), (1, 0, 2))


def timm_rotate(image, degrees):
    """Rotates an image around its center."""
    angle = -degrees * (math.pi / 180)
    cos, sin = tf.cos(angle), tf.sin(angle)
    height, width = (tf.cast(side, "float64") / 2 for side in size(image))
    x, y = width - cos * width - sin * height, height + sin * width - cos * height
    return timm_warp(image, (cos, sin, x), (-sin, cos, y))


def to_int(x):
    """Truncates a number towards 0."""
    return tf.cast(x, "int32")


# As in big_vision's code, the threshold of Solarize is a byte, so 256 becomes 0, and a shift of Posterize that is not
# in 0..7 becomes 7.
OFFICIAL = {
    "AutoContrast": lambda x, m, s, at: autocontrast(x, "float32"),
    "Equalize": lambda x, m, s, at: equalize(x),
    "Invert": lambda x, m, s, at: 255 - x,
    "Rotate": lambda x, m, s, at: official_rotate(x, 30 * m * s),
    "Posterize": lambda x, m, s, at: posterize(x, tf.minimum((8 - to_int(4 * m)) % 256, 7)),
    "Solarize": lambda x, m, s, at: solarize(x, to_int(256 * m) % 256),
    "Color": lambda x, m, s, at: blend(tf.image.rgb_to_grayscale(x), x, 1.8 * m + 0.1),
    "Contrast": lambda x, m, s, at: official_contrast(x, 1.8 * m + 0.1),
    "Brightness": lambda x, m, s, at: blend(tf.zeros_like(x), x, 1.8 * m + 0.1),
    "Sharpness": lambda x, m, s, at: sharpness(x, 1.8 * m + 0.1, rounding=0.0),
    "ShearX": lambda x, m, s, at: official_warp(x, (1, 0.3 * m * s, 0, 0, 1, 0)),
    "ShearY": lambda x, m, s, at: official_warp(x, (1, 0, 0, 0.3 * m * s, 1, 0)),
    "TranslateX": lambda x, m, s, at: official_warp(x, (1, 0, 100 * m * s, 0, 1, 0)),
    "TranslateY": lambda x, m, s, at: official_warp(x, (1, 0, 0, 0, 1, 100 * m * s)),
    "Cutout": lambda x, m, s, at: cutout(x, to_int(40 * m), at),
    "SolarizeAdd": lambda x, m, s, at: solarize_add(x, to_int(110 * m)),
}
TIMM = {
    "AutoContrast": lambda x, m, s, at: autocontrast(x, "float64"),
    "Equalize": OFFICIAL["Equalize"],
    "Invert": OFFICIAL["Invert"],
    "Rotate": lambda x, m, s, at: timm_rotate(x, 30 * m * s),
    "Posterize": lambda x, m, s, at: posterize(x, 4 + to_int(4 * m)),
    "Solarize": lambda x, m, s, at: solarize(x, 256 - to_int(256 * m)),
    "SolarizeAdd": OFFICIAL["SolarizeAdd"],
    "Color": lambda x, m, s, at: blend(luma(x), x, 1 + 0.9 * m * s),
    "Contrast": lambda x, m, s, at: timm_contrast(x, 1 + 0.9 * m * s),
    "Brightness": lambda x, m, s, at: blend(tf.zeros_like(x), x, 1 + 0.9 * m * s),
    "Sharpness": lambda x, m, s, at: sharpness(x, 1 + 0.9 * m * s, rounding=0.5),
    "ShearX": lambda x, m, s, at: timm_shift(x, 0.3 * m * s, 0),
    "ShearY": lambda x, m, s, at: upright(x, 0.3 * m * s, 0),
    "TranslateX": lambda x, m, s, at: timm_shift(x, 0, 0.45 * m * s * tf.cast(tf.shape(x)[1], "float64")),
    "TranslateY": lambda x, m, s, at: upright(x, 0, 0.45 * m * s * tf.cast(tf.shape(x)[0], "float64")),
}
