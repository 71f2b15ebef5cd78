"""What the checkpoints of EfficientNets tell of their models, beside the arrays."""

import math
import os
import re

from keras_vit import arguments
from keras_vit.images.constants import IMAGENET_PREPROCESSING
from keras_vit.models.efficientnet.config import SCALES, STAGES, efficientnet_of
from keras_vit.models.efficientnet.names import PREPROCESSING

# What the arrays do not show.
SETTINGS = ("padding", "batch_norm_epsilon")
# As `FAMILIES` has them of each family.
TIMM_ENDS = ("conv_stem", "classifier")
_OFFICIAL = {"padding": "same", "batch_norm_epsilon": 1e-3}
_OF_TIMM = {"padding": "symmetric", "batch_norm_epsilon": 1e-5}
_ADVPROP = {"mean": 0.5, "std": 0.5}
# Those of timm with weights of the official code and with its own; older names end in the recipe and the image size.
_NAME = r"(?P<official>tf_)?efficientnet_(?P<size>b[0-8]|l2)a?(?P<recipe>_(?:aa|ap|ns|ra2?))?(?:_(?P<side>\d{3}))?"
# Arguments of timm that matter in training alone, or that arrays and config show.
_SHOWN = re.compile("num_classes|in_chans|drop_rate|drop_path_rate|bn_momentum")
# The folders of the official checkpoints of Noisy Student, the only ones whose names tell the images.
_NOISY_STUDENT = r"noisy_student_efficientnet-(?:b[0-7]|l2)(?:_(?P<side>\d{3}))?"


def preprocessing_for(image_size, constants=PREPROCESSING):
    """Returns constants with the official centre crop: of images 32 pixels larger."""
    side = min(arguments.image_size(image_size), key=lambda side: side or math.inf)
    return dict(constants) if side is None else {**constants, "crop_fraction": side / (side + 32)}


def settings_of(checkpoint):
    """Returns the `SETTINGS` of a checkpoint; unknown ones are None."""
    source = checkpoint.source.name
    if source in ("efficientnet", "keras_applications"):
        return dict(_OFFICIAL)
    if source != "timm_efficientnet":
        return dict.fromkeys(SETTINGS)
    if checkpoint.file.container != "timm":
        found = _file_name(checkpoint)
        return dict.fromkeys(SETTINGS) if found is None else dict(_OFFICIAL if found["official"] else _OF_TIMM)
    name = checkpoint.config.get("architecture")
    match = re.fullmatch(_NAME, str(name))
    if match is None:
        raise _unsupported(checkpoint, f"{name!r} of timm", "efficientnet_b0 to _b8 or _l2, or tf_ and one of these")
    found = dict(_OFFICIAL if match["official"] else _OF_TIMM)
    args = checkpoint.config.get("model_args")
    args = args if isinstance(args, dict) else {}
    for key, value in {"global_pool": checkpoint.config.get("global_pool"), **args}.items():
        if key == "pad_type" and value in ("same", ""):
            found["padding"] = "same" if value else "symmetric"
        elif key == "bn_eps" and value is not None:
            found["batch_norm_epsilon"] = arguments.epsilon(key, value)
        elif key == "bn_tf":
            found["batch_norm_epsilon"] = 1e-3 if value else found["batch_norm_epsilon"]
        elif value is not None and not _SHOWN.fullmatch(key) and (key, value) not in _USUAL:
            raise _unsupported(checkpoint, f"{key}={value!r} in its config", "timm's defaults")
    return found


_USUAL = (("global_pool", "avg"), ("act_layer", "silu"), ("act_layer", "swish"))


def preprocessing(checkpoint):
    """Returns (constants, whether the checkpoint itself determines them), where no config of a folder does."""
    size = _image_size(checkpoint)
    if checkpoint.source.name == "keras_applications":
        constants = _normalization(checkpoint)
        return preprocessing_for(size, {**PREPROCESSING, **(constants or {})}), constants is not None
    if checkpoint.source.name == "efficientnet":
        return preprocessing_for(size), _noisy_student(checkpoint) is not None
    found = _file_name(checkpoint)
    constants = {**IMAGENET_PREPROCESSING, **(_ADVPROP if found and found["recipe"] == "_ap" else {})}
    if found and found["official"]:
        constants = preprocessing_for(size, constants)
    return constants, found is not None


def _normalization(checkpoint):
    """Returns the mean and standard deviation of the images of a keras.applications model, or None."""
    stored = {re.sub(r"^normalization_\d+/", "normalization/", key): key for key in checkpoint.file.entries}
    keys = [stored.get(f"normalization/{i}") for i in (0, 1)]
    if None in keys:
        return None
    mean, variance = (array.reshape(-1) for _, array in checkpoint.file.read(keys))
    imagenet = IMAGENET_PREPROCESSING["mean"], IMAGENET_PREPROCESSING["std"]
    if all(len(a) == 3 and max(abs(a - b)) < 1e-5 for a, b in zip((mean, variance), imagenet, strict=True)):
        # The published weights have standard deviations as variances; another layer divides by their roots again.
        return {"mean": imagenet[0], "std": imagenet[1]}
    return {"mean": tuple(map(float, mean)), "std": tuple(math.sqrt(float(value)) for value in variance)}


def _image_size(checkpoint):
    """Returns the image size that the name of a published file tells, or that of the variant of these sizes."""
    found = _file_name(checkpoint) or _noisy_student(checkpoint)
    if found is not None and found["side"]:
        return int(found["side"])
    name = efficientnet_of(*_sizes(checkpoint))
    return SCALES["B0" if name is None else name].image_size


def _file_name(checkpoint):
    """Returns the match of the name of a .pth file that timm publishes, with the first digits of its hash, or None."""
    return re.fullmatch(rf"{_NAME}-[0-9a-f]{{8}}\.pth", os.path.basename(checkpoint.path))


def _noisy_student(checkpoint):
    folder = checkpoint.path if os.path.isdir(checkpoint.path) else os.path.dirname(os.path.abspath(checkpoint.path))
    return re.fullmatch(_NOISY_STUDENT, os.path.basename(os.path.abspath(folder)))


def model_name(checkpoint):
    """Returns the name of the variant of a checkpoint, such as "EfficientNet-B0", or None."""
    name = efficientnet_of(*_sizes(checkpoint))
    return name and f"EfficientNet-{name}"


def _sizes(checkpoint):
    """Returns (widths, repeats) from the shapes of a checkpoint; 0 where a weight is missing."""
    weights = checkpoint.weights

    def width(layer):
        shape = weights.get(f"{layer}/kernel", ())
        return shape[3] if len(shape) == 4 else 0

    layers = {weight.split("/")[0] for weight in weights}
    numbers = range(1, len(STAGES) + 1)
    stages = [f"stage_{number}_block_" for number in numbers]
    widths = [width(layer) for layer in ("stem_conv", *(f"{stage}01/project_conv" for stage in stages), "top_conv")]
    return tuple(widths), tuple(sum(layer.startswith(stage) for layer in layers) for stage in stages)


def add_fields(checkpoint, found):
    """Adds the fields that a checkpoint tells to its `Stated`, and the unknown ones."""
    widths, repeats = _sizes(checkpoint)
    if 0 in widths + repeats:
        raise ValueError(
            f"Expected an EfficientNet of {len(STAGES)} stages in {checkpoint.path!r}. Received: widths {widths} of "
            f"the stem, the stages and the top, and {repeats} blocks."
        )
    found.fields.update(widths=widths, repeats=repeats)
    published = _file_name(checkpoint) or _noisy_student(checkpoint)
    if "image_size" not in found.fields and published is not None and published.groupdict().get("official", True):
        found.fields["image_size"] = _image_size(checkpoint)
    for name in SETTINGS:
        if checkpoint.settings[name] is not None:
            found.fields[name] = checkpoint.settings[name]
        else:
            value, own = _OFFICIAL[name], _OF_TIMM[name]
            found.unknown[name] = f"{value!r} for the official weights, timm's tf_efficientnet_*; {own!r} for its own"


def timm_name(config):
    """Returns the name of timm's architecture for a config, or None."""
    name = efficientnet_of(config.widths, config.repeats)
    return name and f"{'tf_' if config.padding == 'same' else ''}efficientnet_{name.lower()}"


def timm_arguments(config):
    """Returns the arguments of that architecture which its name does not set."""
    usual = (_OFFICIAL if config.padding == "same" else _OF_TIMM)["batch_norm_epsilon"]
    return {} if config.batch_norm_epsilon == usual else {"bn_eps": config.batch_norm_epsilon}


def _unsupported(checkpoint, what, expected):
    return ValueError(f"Cannot load {checkpoint.path!r}: {what} is not supported. Expected {expected}.")
