"""Checks of layer and builder arguments, worded alike everywhere: what was expected, what came."""

import math
import numbers


def positive_int(name, value):
    """Returns `value` as an int, or raises if it is not a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected an integer of at least 1. Received: {value!r}"
        )
    return int(value)


def non_negative_int(name, value):
    """Returns `value` as an int, or raises if it is not a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected an integer of at least 0. Received: {value!r}"
        )
    return int(value)


def pair(name, value):
    """Returns `value` as (height, width): an int stands for both, a tuple or list holds the two."""
    both = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(both) != 2:
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected an integer or (height, width). Received: {value!r}"
        )
    return positive_int(name, both[0]), positive_int(name, both[1])


def image_size(value):
    """Returns `value` as (height, width), or (None, None) where it says any size at run time."""
    if isinstance(value, (tuple, list)) and tuple(value) == (None, None):
        return None, None
    return pair("image_size", value)


def rate(name, value):
    """Returns `value` as a float, or raises if it is not a number in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < 1:
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected a number in [0, 1). Received: {value!r}"
        )
    return float(value)


def number(name, value):
    """Returns `value` as a float, or raises if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"Invalid value received for argument `{name}`. Expected a finite number. Received: {value!r}")
    return float(value)


def positive_number(name, value):
    """Returns `value` as a float, or raises if it is not a finite number above 0."""
    if number(name, value) <= 0:
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected a number above 0. Received: {value!r}"
        )
    return float(value)


def one_of(name, value, allowed):
    """Returns `value`, or raises if it is not one of `allowed`."""
    if value not in allowed:
        raise ValueError(
            f"Invalid value received for argument `{name}`. "
            f"Expected one of {', '.join(repr(a) for a in allowed)}. Received: {value!r}"
        )
    return value


def seeds(seed, count):
    """`count` seeds for as many random sublayers, all different; None for each where there is no seed."""
    return [None if seed is None else seed + i for i in range(count)]


def patch_grid(height, width, patch_size):
    """Rows and columns of whole patches in an image; a remainder at the right and bottom is dropped.

    Args:
        height: Image height in pixels; None, or a tensor, where it is known at run time only.
        width: Image width in pixels, likewise.
        patch_size: (height, width) of a patch in pixels.

    Returns:
        (rows, columns), None where the size is None.

    Raises:
        ValueError: If the image is known to be smaller than one patch.
    """
    for size, patch in zip((height, width), patch_size, strict=True):
        if isinstance(size, int) and size < patch:
            raise ValueError(
                f"Expected images of at least one patch, {patch_size[0]} x {patch_size[1]} pixels. "
                f"Received: images of {height} x {width} pixels."
            )
    rows = None if height is None else height // patch_size[0]
    columns = None if width is None else width // patch_size[1]
    return rows, columns


def grid_tokens(grid):
    """The number of patches in a (rows, columns) grid, None where a side is known at run time only."""
    return None if None in grid else grid[0] * grid[1]


def class_names(names, num_classes):
    """Returns `names` as a tuple, or raises if they are not one string a class; any number is for a head to come."""
    if names is None:
        return None
    wrong = f"{names!r}"
    if not isinstance(names, str):
        names = tuple(names)
        unnamed = [name for name in names if not isinstance(name, str) or not name]
        # Two classes may have one name, as in ImageNet.
        if not unnamed and num_classes in (None, 0, len(names)):
            return names
        wrong = f"{len(names)} names" + (f", {unnamed[0]!r} among them" if unnamed else "")
    count = f"{num_classes} strings" if num_classes else "strings"
    raise ValueError(
        f"Invalid value received for argument `class_names`. Expected {count}, one a class. Received: {wrong}"
    )
