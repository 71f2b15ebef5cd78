"""Reads the config of an EfficientNet from a checkpoint, and finds timm's architecture for a config."""

import math
import os
import re

from keras_vit import arguments
from keras_vit.images.constants import IMAGENET_PREPROCESSING
from keras_vit.models.efficientnet.config import SCALES, STAGES, efficientnet_name, official_preprocessing
from keras_vit.weights import timm_config
from keras_vit.weights.found import DEFAULT, KNOWN, STATED, put_preprocessing
from keras_vit.weights.record import begin, read_record

OFFICIAL = {"padding": "same", "batch_norm_epsilon": 1e-3}
OF_TIMM = {"padding": "symmetric", "batch_norm_epsilon": 1e-5}
_ADVPROP = {"mean": 0.5, "std": 0.5}
# The names of timm's architectures. "tf_" marks official weights. Older names contain the training recipe, such as
# "_ns" for Noisy Student, and may end in the image size.
_NAME = r"(?P<official>tf_)?efficientnet_(?P<size>b[0-8]|l2)a?(?P<recipe>_(?:aa|ap|ns|ra2?))?(?:_(?P<side>\d{3}))?"
# These timm arguments only affect training, or their values follow from the arrays or the config.
_SHOWN = re.compile("num_classes|in_chans|drop_rate|drop_path_rate|bn_momentum")
# The folder names of the official Noisy Student checkpoints. Other folder names do not determine the preprocessing.
_NOISY_STUDENT = r"noisy_student_efficientnet-(?:b[0-7]|l2)(?:_(?P<side>\d{3}))?"
# The only supported values of these timm arguments.
_USUAL = (("global_pool", "avg"), ("act_layer", "silu"), ("act_layer", "swish"))


def read_config(file, grid_size=None):
    """Returns the config fields of a `CanonicalFile` as a `Found`."""
    found = begin(file, "stem_conv/kernel")
    widths, repeats = _sizes(file)
    found.put(STATED, widths=widths, repeats=repeats)
    if 0 in widths + repeats:
        reason = (
            f"Expected an EfficientNet of {len(STAGES)} stages in {file.path!r}. Received: widths {widths} of the "
            f"stem, the stages and the top, and {repeats} blocks."
        )
        found.leave(reason, "widths", "repeats")
    if "config" in file.own:
        read_record(file, found)
        return found
    if file.container == "timm":
        timm_config.read_folder(file, found)
        found.put(f"{KNOWN} {file.model_name}", **_settings_from_architecture(file))
        return found
    _read_preprocessing(file, found)
    published, official = _file_name(file), file.source.name in ("efficientnet", "keras_applications")
    if _noisy_student(file) is not None or (published is not None and published["official"]):
        found.put(f"{KNOWN} files of this name", image_size=(_image_size(file),) * 2)
    if official or published is not None:
        settings = OFFICIAL if official or published["official"] else OF_TIMM
        found.put(f"{DEFAULT} {file.source.name}", **settings)
        return found
    for name, value in OFFICIAL.items():
        own = OF_TIMM[name]
        found.leave(f"{value!r} for official weights (tf_efficientnet_* in timm), {own!r} for timm's own", name)
    return found


def _settings_from_architecture(file):
    """Returns the settings that a timm folder's architecture and arguments imply."""
    name = file.config.get("architecture")
    match = re.fullmatch(_NAME, str(name))
    if match is None:
        raise _unsupported(file, f"{name!r} of timm", "efficientnet_X or tf_efficientnet_X, where X is b0 to b8 or l2")
    found = dict(OFFICIAL if match["official"] else OF_TIMM)
    for key, value in {"global_pool": file.config.get("global_pool"), **timm_config.model_args(file)}.items():
        if key == "pad_type" and value in ("same", ""):
            found["padding"] = "same" if value else "symmetric"
        elif key == "bn_eps" and value is not None:
            found["batch_norm_epsilon"] = arguments.epsilon(key, value)
        elif key == "bn_tf":
            found["batch_norm_epsilon"] = 1e-3 if value else found["batch_norm_epsilon"]
        elif value is not None and not _SHOWN.fullmatch(key) and (key, value) not in _USUAL:
            raise _unsupported(file, f"{key}={value!r} in its config", "timm's defaults")
    return found


def _read_preprocessing(file, found):
    """Adds to `found` the preprocessing of a file without a config."""
    size, source = _image_size(file), file.source.name
    if source == "keras_applications" and (constants := _normalization(file)) is not None:
        found.put(STATED, preprocessing=official_preprocessing(size, **constants))
    elif source == "efficientnet" and _noisy_student(file) is not None:
        found.put(f"{KNOWN} files of this name", preprocessing=official_preprocessing(size))
    elif source == "timm_efficientnet" and (published := _file_name(file)) is not None:
        constants = {"antialias": True, **(_ADVPROP if published["recipe"] == "_ap" else {})}
        if not published["official"]:
            constants["crop_fraction"] = IMAGENET_PREPROCESSING["crop_fraction"]
        found.put(f"{KNOWN} files of this name", preprocessing=official_preprocessing(size, **constants))
    else:
        put_preprocessing(found, file.source, file.source.preprocessing)


def _normalization(file):
    """Returns the `mean` and `std` in the normalization layer of a keras.applications file, as a dict, or None."""
    stored = {re.sub(r"^normalization_\d+/", "normalization/", key): key for key in file.file.entries}
    keys = [stored.get(f"normalization/{i}") for i in (0, 1)]
    if None in keys:
        return None
    mean, variance = (array.reshape(-1) for _, array in file.file.read(keys))
    imagenet = IMAGENET_PREPROCESSING["mean"], IMAGENET_PREPROCESSING["std"]
    if all(len(a) == 3 and max(abs(a - b)) < 1e-5 for a, b in zip((mean, variance), imagenet, strict=True)):
        # In the published files, the array of variances contains ImageNet's standard deviations, not their squares.
        # keras.applications divides by the square roots of these numbers twice. Both divisions together divide by the
        # standard deviations.
        return {"mean": imagenet[0], "std": imagenet[1]}
    return {"mean": tuple(map(float, mean)), "std": tuple(math.sqrt(float(value)) for value in variance)}


def _image_size(file):
    """Returns the image size in the name of a published file.

    If the name contains no size, returns the image size of the variant with the same widths and repeats as the file. If
    there is no such variant, returns the image size of B0.
    """
    found = _file_name(file) or _noisy_student(file)
    if found is not None and found["side"]:
        return int(found["side"])
    name = efficientnet_name(*_sizes(file))
    return SCALES["B0" if name is None else name].image_size


def _file_name(file):
    """Returns a regex match if the file name has the form of timm's published .pth files, else None.

    These names end in a hash.
    """
    return re.fullmatch(rf"{_NAME}-[0-9a-f]{{8}}\.pth", os.path.basename(file.path))


def _noisy_student(file):
    folder = file.path if os.path.isdir(file.path) else os.path.dirname(os.path.abspath(file.path))
    return re.fullmatch(_NOISY_STUDENT, os.path.basename(os.path.abspath(folder)))


def _sizes(file):
    """Returns the config fields (widths, repeats) from the shapes in a file. The width of a missing weight is 0."""
    stages = [f"stage_{number}_block_" for number in range(1, len(STAGES) + 1)]
    layers = ("stem_conv", *(f"{stage}01/project_conv" for stage in stages), "top_conv")
    widths = [file.size(f"{layer}/kernel", 4, 3) or 0 for layer in layers]
    return tuple(widths), tuple(sum(layer.startswith(stage) for layer in file.layers) for stage in stages)


def _unsupported(file, what, expected):
    return ValueError(f"Cannot load {file.path!r}: {what} is not supported. Expected {expected}.")


def timm_architecture(config):
    """Returns (name of timm's architecture, `model_args`) for a config, as `Family.timm` describes."""
    name = efficientnet_name(config.widths, config.repeats)
    for prefix, settings in (("tf_", OFFICIAL), ("", OF_TIMM)):
        if name and all(getattr(config, field) == value for field, value in settings.items()):
            return f"{prefix}efficientnet_{name.lower()}", {}
    raise ValueError("a size or options for which timm has no name")
