"""Functions that check arguments and raise uniform error messages."""

import dataclasses
import difflib
import functools
import math
import numbers
import os
import re
import reprlib
from collections.abc import Callable, Collection

import numpy as np

# The largest allowed image side in pixels, and the largest allowed layer width. A config with a larger number is
# damaged.
LARGEST = 2**16
# The largest int64.
MOST = 2**63 - 1


def invalid(name, expected, value, known=(), advice=""):
    """Returns a ValueError about the argument `name`. The message suggests the name in `known` closest to `value`."""
    received = f"{value!r}{nearest(value, known)}{advice and f'. {advice}'}"
    return ValueError(f"Invalid value received for argument `{name}`. Expected {expected}. Received: {received}")


def nearest(name, known, most=1):
    """Returns ". Did you mean 'x'?" with up to `most` names from `known`. Returns "" if none is similar to `name`."""
    plain = {_plain(other): other for other in reversed([*known]) if isinstance(other, str) and other != name}
    found = difflib.get_close_matches(_plain(name), plain, most) if isinstance(name, str) else []
    return f". Did you mean {' or '.join(repr(plain[other]) for other in found)}?" if found else ""


def _plain(name):
    return re.sub(r"[\W_]", "", name.lower())


def _scalar(value):
    """Returns an array without axes as a NumPy scalar, and other values unchanged."""
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value


def _int(name, value, most=MOST, *, least):
    """Returns `value` as an int; raises if it is not an integer of `least` to `most`."""
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise invalid(name, f"an integer of at least {least}", value)
    if value > most:
        raise invalid(name, f"an integer of at most {most}", value)
    return int(value)


positive_int = functools.partial(_int, least=1)
non_negative_int = functools.partial(_int, least=0)


def pair(name, value, most=MOST):
    """Returns (height, width) from a pair or from one integer for both; raises if a side is not from 1 to `most`."""
    both = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(both) != 2:
        raise invalid(name, "an integer or (height, width)", value)
    return positive_int(name, both[0], most), positive_int(name, both[1], most)


def image_size(value):
    """Returns `value` as (height, width). (None, None) stands for images of any size, and is returned unchanged."""
    if isinstance(value, (tuple, list)) and tuple(value) == (None, None):
        return None, None
    return pair("image_size", value, LARGEST)


def is_number(value):
    """Returns True if `value` is a finite number."""
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    # `math.isfinite` raises an OverflowError for an integer that is too large for a float.
    return abs(value) <= MOST if isinstance(value, numbers.Integral) else math.isfinite(value)


def _number_in(name, value, expected, holds):
    """Returns `value` as a float; raises if it is not a finite number, or if `holds(value)` is False."""
    if not is_number(value) or not holds(value):
        raise invalid(name, expected, value)
    return float(value)


number = functools.partial(_number_in, expected="a finite number", holds=lambda value: True)
rate = functools.partial(_number_in, expected="a number in [0, 1)", holds=lambda value: 0 <= value < 1)
fraction = functools.partial(_number_in, expected="a number in (0, 1)", holds=lambda value: 0 < value < 1)
share = functools.partial(_number_in, expected="a number from 0 to 1", holds=lambda value: 0 <= value <= 1)
non_negative_number = functools.partial(_number_in, expected="a number of at least 0", holds=lambda value: value >= 0)
positive_number = functools.partial(_number_in, expected="a number above 0", holds=lambda value: value > 0)
epsilon = functools.partial(_number_in, expected="a number above 0, at most 1", holds=lambda value: 0 < value <= 1)


def boolean(name, value):
    """Returns `value` as a bool; raises if it is not a bool of Python or NumPy."""
    if not isinstance(value, (bool, np.bool_)):
        raise invalid(name, "a bool", value)
    return bool(value)


def model(value, name="model"):
    """Returns `value`; raises if it is not a model, that is, an object whose `layers` is a list or tuple."""
    if not isinstance(getattr(value, "layers", None), (list, tuple)):
        raise invalid(name, "a keras.Model", value)
    return value


def choice(name, value, allowed):
    """Returns `value`; raises if it is not one of `allowed`."""
    if value not in allowed:
        raise invalid(name, f"one of {', '.join(map(repr, allowed))}", value, allowed)
    return value


def instance(name, value, kinds, expected=None):
    """Returns `value`; raises if it is not an instance of `kinds`. `expected` describes `kinds` in the error."""
    if not isinstance(value, kinds):
        raise invalid(name, expected or f"a {kinds.__name__}", value)
    return value


def found(name, value, get, expected):
    """Returns `get(value)`. `get` is a function of Keras, and its errors become a ValueError about `name`."""
    try:
        return get(value)
    except (ValueError, TypeError):
        raise invalid(name, expected, value) from None


text = functools.partial(instance, kinds=str, expected="a string")
path = functools.partial(instance, kinds=(str, os.PathLike), expected="a path")
function = functools.partial(instance, kinds=Callable, expected="a function")


def names(name, value):
    """Raises if `value` is neither a string nor several strings."""
    if not isinstance(value, Collection) or not all(isinstance(each, str) for each in value):
        raise invalid(name, "a name or several names", value)


def several(name, value):
    """Returns the values of a sequence or iterator as a list. Strings, sets, dicts and single values are refused."""
    if isinstance(value, (str, bytes, set, frozenset, dict)) or not np.iterable(value):
        raise invalid(name, "a sequence of values", value)
    return list(value)


def each(check, optional=False, **values):
    """Calls `check(name, value)` for each keyword argument; with `optional`, skips arguments that are None."""
    for name, value in values.items():
        if value is not None or not optional:
            check(name, value)


def optional(check, name, value):
    """Returns None if `value` is None, else `check(name, value)`."""
    return None if value is None else check(name, value)


def seeds(seed, count):
    """Derives `count` independent seeds for inner layers from `seed`. If `seed` is None, all derived seeds are None.

    The seeds `seed`, `seed + 1`, ... would not be independent. If two layers had consecutive seeds, some of their inner
    layers would have equal seeds. On PyTorch, Keras' seed generator adds a counter to the seed, so that `seed + 1`
    would draw the numbers of `seed`, shifted by one step.
    """
    if seed is None:
        return [None] * count
    states = np.random.SeedSequence(non_negative_int("seed", seed)).generate_state(count)
    return [int(state) >> 1 for state in states]


def grid_size(image_size, patch_size, stride=1):
    """Returns how many whole patches an image contains, as (rows, columns). Image sides may be None or tensors.

    `stride` is the total stride of the ResNet before the patch embedding, 1 without a ResNet.
    """
    smallest = [(patch - 1) * stride + 1 for patch in patch_size]
    if any(isinstance(side, int) and side < least for side, least in zip(image_size, smallest, strict=True)):
        raise ValueError(
            f"Expected images of at least one patch, {smallest[0]} x {smallest[1]} pixels. "
            f"Received: images of {image_size[0]} x {image_size[1]} pixels."
        )
    if stride > 1:
        image_size = [-(-side // stride) for side in image_size]
    rows, columns = (
        None if side is None else side // patch for side, patch in zip(image_size, patch_size, strict=True)
    )
    return rows, columns


def takes(expected, received):
    """Returns True if a tensor's shape `received` matches a model's input shape `expected`. None matches any size."""
    pairs = zip(expected, received, strict=False)
    return len(expected) == len(received) and all(None in (e, r) or e == r for e, r in pairs)


def image_shape(name, received, expected, owner=""):
    """Raises if the image shape `received` does not match the model's input shape `expected`, where None is any size.

    The error contains `owner`, such as " for model 'vit_B16'", after the expected shape.
    """
    if takes(expected[1:], received[1:]):
        return
    described = f"images of shape {expected[1:]}{owner}, where None is any number"
    if len(received) == len(expected) - 1:
        advice = "Add the axis of the batch, as in images[None] or dataset.batch(32)"
        raise invalid(name, f"batches of {described}", tuple(received), advice=advice)
    if len(received) == 4 and received[3] == expected[3]:
        described += f": resize them, or build the model with image_size={received[1:3]}"
    raise invalid(name, described, received[1:])


def arrays(name, value):
    """Returns `value`, a model's input: an array, or a dict or list of arrays.

    Raises a ValueError if an array has fewer than two axes, or if a NumPy array contains anything but finite numbers.
    """
    import keras  # Import Keras here, because `keras-vit --help` imports this file and must not wait for Keras.

    for part in keras.tree.flatten(value):
        is_real = not isinstance(part, np.ndarray) or (part.dtype.kind in "biufV" and np.isfinite(part).all())
        if len(getattr(part, "shape", ())) < 2 or not is_real:
            raise invalid(name, "an array (batch, height, width, channels) of finite numbers", value)
    return value


def num_patches(grid_size):
    """Returns the number of patches in a grid, or None if a side is None."""
    return None if None in grid_size else grid_size[0] * grid_size[1]


def class_names(names, num_classes):
    """Returns the class names `names` as a tuple, or None if `names` is None.

    Raises a ValueError if a name is empty or not a string, or if there are not `num_classes` names. If `num_classes` is
    None or 0, any number of names is valid.
    """
    if names is None:
        return None
    # Refuse a set, because its order differs between processes, and a dict, which may contain indices in any order.
    is_list = np.iterable(names) and not isinstance(names, (str, set, frozenset, dict))
    listed = tuple(names) if is_list else ()
    # Names may be equal: two classes of ImageNet have the same name.
    named = all(isinstance(name, str) and name for name in listed)
    if is_list and named and num_classes in (None, 0, len(listed)):
        return listed
    count = f"{num_classes} strings" if num_classes else "strings"
    received = f"{len(listed)} names, {reprlib.repr(listed)}" if is_list else repr(names)
    raise ValueError(
        f"Invalid value received for argument `class_names`. Expected {count}, one per class. Received: {received}"
    )


def names_differ(names, others):
    """Returns True if two lists of class names differ.

    None, [] and ["0", "1", ...] mean that the names are unknown. Unknown names do not differ from known names.
    """
    names, others = list(names or ()), list(others or ())
    if set(names) & set(others):
        return names != others
    return all(part and part != [str(i) for i in range(len(part))] for part in (names, others))


def same_classes(name, names, others, owner):
    """Raises if the class names of the argument `name` differ from `others`, the class names of `owner`."""
    if names_differ(names, others):
        raise invalid(name, f"{owner}'s classes in the same order, {list(others)[:5]} ...", list(names)[:5])


def record(kind, values):
    """Returns an instance of the dataclass `kind` from a dict of its fields. Raises a ValueError for invalid fields."""
    try:
        return kind(**values)
    except TypeError as error:
        names = ", ".join(field.name for field in dataclasses.fields(kind))
        raise ValueError(f"Expected the fields of a {kind.__name__}: {names}. Received: {error}") from None
