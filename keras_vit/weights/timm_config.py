"""What the config.json of timm's folders states for the models of all families."""

import re

from keras_vit import arguments
from keras_vit.config import Preprocessing
from keras_vit.images.constants import IMAGENET_PREPROCESSING
from keras_vit.weights.found import STATED
from keras_vit.weights.labels import read_labels

_MODES = {"center": "crop", "squash": "squash", "border": "pad"}
_FILTERS = {"lanczos": "lanczos3", "box": "area"}


def read_folder(file, found):
    """Adds preprocessing, class names, task and image size."""
    pretrained = file.facts.get("timm") or {}
    found.attempt(STATED, "preprocessing", lambda: _preprocessing(file.path, pretrained))
    read_labels(found, file.config, file.config.get("label_names") or pretrained.get("label_names"), of_timm=True)
    size = pretrained.get("input_size")
    size = size[1:] if isinstance(size, (tuple, list)) else size
    read_image_size(file, found, model_args(file).get("img_size") or size)


def model_args(file):
    """Returns the arguments of timm's builder in the config of a folder, or {}."""
    found = file.config.get("model_args") if file.container == "timm" else None
    return found if isinstance(found, dict) else {}


def read_image_size(file, found, size):
    """Adds the image size that a config states, if it is not None."""
    if size is not None:
        found.attempt(
            STATED, "image_size", lambda: checked(file, lambda _, side: arguments.image_size(side), "image_size", size)
        )


def checked(file, check, name, value, *args):
    """Returns a value of the file's config, checked by `check(name, value, *args)`."""
    try:
        return check(name, value, *args)
    except ValueError as error:
        raise ValueError(f"Cannot load {file.path!r}: its config does not fit. {error}") from None


def put_heads(file, found, number):
    """Adds the number of attention heads that a config states, unless the shapes show it; it divides the width."""
    width = (file.size("block_00/attention/qkv/kernel", 2, 1) or 0) // 3
    if width and "num_heads" not in found.values:
        found.put(STATED, num_heads=checked(file, _divisor, "num_heads", number, width))


def _divisor(name, value, width):
    if width % arguments.positive_int(name, value, width):
        raise arguments.invalid(name, f"a divisor of the width, {width}", value)
    return value


def unread(config, read, harmless):
    """Returns the entries of a config that are not empty, and whose keys are neither in `read` nor match `harmless`."""
    return {
        key: value for key, value in config.items() if value and key not in read and not re.fullmatch(harmless, key)
    }


def _preprocessing(path, pretrained):
    try:
        return Preprocessing(**of_pretrained_cfg(pretrained))
    except ValueError as error:
        raise ValueError(f"Cannot load {path!r}: its preprocessing is invalid. {error}") from None


def of_pretrained_cfg(config):
    """Returns the constants from timm's pretrained_cfg; missing ones are timm's defaults."""
    filter, mode = config.get("interpolation"), config.get("crop_mode")
    if mode not in (None, *_MODES):
        raise ValueError(
            f"Expected `crop_mode` of timm's pretrained_cfg to be one of {', '.join(map(repr, _MODES))}. "
            f"Received: {mode!r}"
        )
    found = {
        "mean": config.get("mean"),
        "std": config.get("std"),
        "interpolation": _FILTERS.get(filter, filter),
        "crop_fraction": config.get("crop_pct"),
    }
    found = {name: value or IMAGENET_PREPROCESSING[name] for name, value in found.items()}
    # Pillow antialiases with all filters except "nearest".
    antialias = {} if found["interpolation"] == "nearest" else {"antialias": True}
    return {**found, **antialias, "resize_mode": _MODES[mode or "center"]}
