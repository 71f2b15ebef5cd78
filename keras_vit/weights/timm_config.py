"""Reads and writes the keys of timm's config.json that all model families share."""

import re

from keras_vit import arguments
from keras_vit.config import DEFAULT_IMAGE_SIZE, Preprocessing
from keras_vit.images.constants import IMAGENET_PREPROCESSING
from keras_vit.weights.found import DEFAULT, KNOWN, STATED, attempt_preprocessing
from keras_vit.weights.labels import TASKS, read_labels

_MODES = {"center": "crop", "squash": "squash", "border": "pad"}
_FILTERS = {"lanczos": "lanczos3", "box": "area"}
# {key of timm's pretrained_cfg: the fields of `Preprocessing` that it sets}.
_CONSTANTS = {
    **{"mean": ("mean", "value_range"), "std": ("std",), "interpolation": ("interpolation", "antialias")},
    **{"crop_pct": ("crop_fraction",), "crop_mode": ("resize_mode",)},
}

# (pattern of timm's architecture names, entries of the pretrained_cfg of most weights for these architectures).
_PRETRAINED_CFGS = (
    (r"vit_small_patch8_224|deit3?_.*_224", {"crop_pct": 0.9}),
    (r"deit3?_.*_384|vit_.*_dinov[23](_qkvb)?", {"crop_pct": 1.0}),
    (
        r"vit_(tiny|small|base|large|huge)_(patch\d+|r_s16_p8|r26_s32|r50_s(16|32))_(?P<side>224|384)",
        {"mean": [0.5] * 3, "std": [0.5] * 3},
    ),
)


def state_architecture(file, name, preprocessing):
    """Changes an open state dict, so that it is read like a timm folder whose config.json has only the architecture.

    If `preprocessing` is True, the file gets the preprocessing of timm's default weights for this architecture.
    """
    if file.container not in ("pth", "safetensors") or file.facts.get("keras_vit"):
        raise arguments.invalid("architecture", "None, except for a state dict of timm without its config.json", name)
    found = [(re.fullmatch(pattern, name), cfg) for pattern, cfg in _PRETRAINED_CFGS]
    match, cfg = next((pair for pair in found if pair[0]), (None, None))
    if match and "side" in match.groupdict():
        cfg = {**cfg, "crop_pct": 0.9 if match["side"] == "224" else 1.0}
    # A dot separates the architecture and the tag.
    config = {"architecture": name.partition(".")[0]}
    file.container, file.facts = "timm", {**file.facts, "config": config, "timm": None}
    if preprocessing and cfg is not None:
        file.facts |= {"timm": cfg, "assumed": {"preprocessing": f"that of timm's default weights of {name}"}}


def read_folder(file, found):
    """Reads preprocessing, class names, task and image size from the config.json of a timm folder into `found`."""
    pretrained = file.facts.get("timm")
    if pretrained is None:
        found.leave(f"timm's models of the architecture {file.model_name!r} differ in it", "preprocessing")
        pretrained = {}
    else:
        origin, keys = f"{DEFAULT} timm", _CONSTANTS
        if "assumed" in file.facts:
            origin, keys = f"{KNOWN} {file.model_name}", {}
        attempt_preprocessing(found, origin, pretrained, keys, lambda: preprocessing_from_cfg(pretrained))
    read_labels(found, file.config, file.config.get("label_names") or pretrained.get("label_names"), of_timm=True)
    size = pretrained.get("input_size")
    size = size[1:] if isinstance(size, (tuple, list)) else size
    read_image_size(file, found, model_args(file).get("img_size") or size)


def model_args(file):
    """Returns the `model_args` in a folder's config.json: the arguments of timm's model function. {} if missing."""
    found = file.config.get("model_args") if file.container == "timm" else None
    return found if isinstance(found, dict) else {}


def read_image_size(file, found, size):
    """Sets the image size in `found` to `size`, which is from a config.json. Does nothing if `size` is None."""
    if size is not None:
        found.attempt(
            STATED, "image_size", lambda: checked(file, lambda _, side: arguments.image_size(side), "image_size", size)
        )


def checked(file, check, name, value, *args):
    """Returns `check(name, value, *args)`. If `check` raises a ValueError, adds the path of the file to the message."""
    try:
        return check(name, value, *args)
    except ValueError as error:
        raise ValueError(f"Cannot load {file.path!r}: its config does not fit. {error}") from None


def put_heads(file, found, number, origin=STATED):
    """If `found` has no num_heads, sets it to `number`. Raises if `number` does not divide the model's width."""
    width = (file.size("block_00/attention/qkv/kernel", 2, 1) or 0) // 3
    if width and "num_heads" not in found.values:
        found.put(origin, num_heads=checked(file, _divisor, "num_heads", number, width))


def translated(path, where, value, table):
    """Looks up `value`, a setting of another library, in `table`, and returns our equivalent.

    Errors name the setting by `where`, its key in the file.
    """
    for theirs, ours in table.items():
        if value == theirs and isinstance(value, bool) == isinstance(theirs, bool):
            return ours
    expected = ", ".join(map(repr, table))
    raise ValueError(f"Cannot load {path!r}: {where}={value!r} is not supported. Expected one of {expected}.")


def _divisor(name, value, width):
    if width % arguments.positive_int(name, value, width):
        raise arguments.invalid(name, f"a divisor of the width, {width}", value)
    return value


def preprocessing_from_cfg(config):
    """Returns the arguments of `Preprocessing` from timm's pretrained_cfg. Missing keys have timm's defaults."""
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


# Writing --------------------------------------------------------------------------------------------------------------


def config_json(name, args, config, facts, source, arrays):
    """Returns the contents of config.json for timm's architecture `name` with the `model_args` `args`.

    `facts` is the metadata that `save_weights` writes. `arrays` has the keys of `source`, and begins with the first
    layer.
    """
    preprocessing = Preprocessing(**facts["preprocessing"])
    mean, std = unit_constants(preprocessing, config.in_channels)
    interpolation, names = preprocessing.interpolation, config.class_names
    if interpolation == "lanczos5":
        raise ValueError(
            "timm does not have the interpolation 'lanczos5'. Use another interpolation, or save a state dict."
        )
    usual = [DEFAULT_IMAGE_SIZE] * 2 if None in config.image_size else list(config.image_size)
    first, head = (key.removesuffix(".weight") for key in (next(iter(arrays)), *source.find("head/kernel").keys))
    # In a model without a head, the width is the length of its last normalization layer's weights.
    widths = (f"{head}.weight", "norm.weight", "fc_norm.weight", "bn2.weight")
    return {
        "architecture": name,
        "num_classes": config.num_classes,
        # The head of a BiT is a 1 x 1 convolution, (classes, width, 1, 1).
        "num_features": next((arrays[key].shape[:2][-1] for key in widths if key in arrays), None),
        "global_pool": {"gap": "avg"}.get(pooling := getattr(config, "pooling", "gap"), pooling),
        "pretrained_cfg": {
            "input_size": [config.in_channels, *args.get("img_size", usual)],
            "fixed_input_size": None not in config.image_size and config.family == "vit",
            "interpolation": {v: k for k, v in _FILTERS.items()}.get(interpolation, interpolation),
            "crop_pct": preprocessing.crop_fraction,
            "crop_mode": {v: k for k, v in _MODES.items()}[preprocessing.resize_mode],
            "mean": mean,
            "std": std,
            "num_classes": config.num_classes,
            "pool_size": None,
            "first_conv": first,
            "classifier": [head, "head_dist"] if getattr(config, "distillation_token", False) else head,
            **({} if names is None else {"label_names": list(names)}),
        },
        "model_args": args | ({} if config.in_channels == 3 else {"in_chans": config.in_channels}),
        # timm has no key for the task, so write transformers' key. timm ignores this key.
        **({} if config.task == "single_label" else {"problem_type": {v: k for k, v in TASKS.items()}[config.task]}),
    }


def unit_constants(preprocessing, channels):
    """Returns the mean and std of a `Preprocessing` for images scaled to [0, 1], one number per channel."""
    low, high = preprocessing.value_range
    mean = [(value - low) / (high - low) for value in preprocessing.mean]
    std = [value / (high - low) for value in preprocessing.std]
    return tuple(values * (channels if len(values) == 1 else 1) for values in (mean, std))
