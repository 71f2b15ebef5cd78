"""The preprocessing of checkpoints: from their config, or that of their source."""

import dataclasses
import re

import numpy as np

from keras_vit import arguments
from keras_vit.config import Preprocessing, preprocessing_record
from keras_vit.images.constants import CLIP_PREPROCESSING, IMAGENET_PREPROCESSING
from keras_vit.models.families import FAMILIES

_TIMM_MODES = {"center": "crop", "squash": "squash", "border": "pad"}
_TIMM_FILTERS = {"lanczos": "lanczos3", "box": "area"}
# Of transformers' model types that differ in this from the others of their source.
_OF_TYPES = {"deit": IMAGENET_PREPROCESSING, "vit_mae": {**IMAGENET_PREPROCESSING, "crop_fraction": 1.0}}
# Pillow's filter numbers.
_RESAMPLE = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic", 4: "area"}
# The defaults of transformers' image processors, by the part of their names before "ImageProcessor".
_IMAGENET = {"image_mean": IMAGENET_PREPROCESSING["mean"], "image_std": IMAGENET_PREPROCESSING["std"]}
_STANDARD = {"image_mean": 0.5, "image_std": 0.5}
_CLIP = {
    "image_mean": CLIP_PREPROCESSING["mean"],
    "image_std": CLIP_PREPROCESSING["std"],
    "resample": 3,
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": 224,
    "default_to_square": False,
}
PROCESSORS = {
    "ViT": {**_STANDARD, "resample": 2, "size": 224},
    "DeiT": {**_STANDARD, "resample": 3, "size": 256, "do_center_crop": True, "crop_size": 224},
    "CLIP": _CLIP,
    "Bit": _CLIP,
    "Siglip": {**_STANDARD, "resample": 3, "size": {"height": 224, "width": 224}, "default_to_square": False},
    "DINOv3ViT": {**_IMAGENET, "resample": 2, "size": 224},
    "ConvNext": {
        **_STANDARD,
        "resample": 3,
        "size": {"shortest_edge": 384},
        "crop_pct": 224 / 256,
        "default_to_square": False,
    },
}
# The processors that transformers takes for model types if preprocessor_config.json names none.
_PROCESSOR_OF = {
    **{
        "deit": "DeiT",
        "clip": "CLIP",
        "clip_vision_model": "CLIP",
        "siglip": "Siglip",
        "siglip_vision_model": "Siglip",
    },
    **{"dinov2": "Bit", "dinov2_with_registers": "Bit", "bit": "Bit", "dinov3_vit": "DINOv3ViT"},
}
# ConvNext's processor squashes images of this size and more, and crops smaller ones.
_SQUASHED_BY_CONVNEXT = 384


def preprocessing_of(checkpoint, record, in_channels, **given):
    """Returns a model's `Preprocessing`: `record`, else the checkpoint's, else the official; changed by `given`."""
    if record is None:
        record = Preprocessing(**({} if checkpoint is None else checkpoint.preprocessing))
    record = preprocessing_record(record).for_channels(in_channels)
    return record.changed(**{name: value for name, value in given.items() if value is not None})


def of_checkpoint(checkpoint):
    """Returns (constants, whether the checkpoint itself determines them)."""
    found, is_stated = _of_checkpoint(checkpoint)
    try:
        Preprocessing(**found)
    except ValueError as error:
        raise ValueError(f"Cannot load {checkpoint.path!r}: its preprocessing is invalid. {error}") from None
    return found, is_stated


def _of_checkpoint(checkpoint):
    source, weights = checkpoint.source, checkpoint.weights
    own, container = checkpoint.own.get("preprocessing"), checkpoint.file.container
    if own is not None:
        return {field.name: own[field.name] for field in dataclasses.fields(Preprocessing) if field.name in own}, True
    if container == "timm":
        return of_timm(checkpoint.facts.get("timm") or {}), True
    if container == "huggingface":
        preprocessor = checkpoint.facts.get("preprocessor")
        if isinstance(preprocessor, dict):
            return of_huggingface(checkpoint.path, preprocessor, checkpoint.config), True
        # As in the published models.
        return _OF_TYPES.get(checkpoint.config.get("model_type"), source.preprocessing), False
    family = FAMILIES.get(source.family)
    if family is not None and family.preprocessing is not None:
        return family.preprocessing(checkpoint)
    if source.name == "deit" and "block_00/layer_scale_1/gamma" in weights:
        # DeiT III is evaluated without cropping the shorter side.
        return {**IMAGENET_PREPROCESSING, "crop_fraction": 1.0, "resize_mode": "crop"}, True
    if source.name == "mae" and checkpoint.grid_size is not None:
        sides = np.multiply(checkpoint.grid_size, weights["patch_embedding/kernel"][:2])
        if max(sides) > 224:
            # Larger images are evaluated whole.
            return {**IMAGENET_PREPROCESSING, "crop_fraction": 1.0, "resize_mode": "crop"}, True
    imagenet = ("distillation_token/tokens", "registers/tokens", "block_00/layer_scale_1/gamma")
    if source.name == "timm" and any(weight in weights for weight in imagenet):
        # A bare state dict does not name DeiT, DeiT III or DINOv2 otherwise.
        return IMAGENET_PREPROCESSING, False
    return source.preprocessing, source.name in ("official", "big_vision", "bit")


def of_timm(config):
    """Returns the constants from timm's pretrained_cfg; missing ones are timm's defaults."""
    filter, mode = config.get("interpolation"), config.get("crop_mode")
    if mode not in (None, *_TIMM_MODES):
        raise ValueError(
            f"Expected `crop_mode` of timm's pretrained_cfg to be one of {', '.join(map(repr, _TIMM_MODES))}. "
            f"Received: {mode!r}"
        )
    found = {
        "mean": config.get("mean"),
        "std": config.get("std"),
        "interpolation": _TIMM_FILTERS.get(filter, filter),
        "crop_fraction": config.get("crop_pct"),
    }
    found = {name: value or IMAGENET_PREPROCESSING[name] for name, value in found.items()}
    return {**found, **_by_pillow(found["interpolation"]), "resize_mode": _TIMM_MODES[mode or "center"]}


def of_huggingface(path, preprocessor, config):
    """Returns the constants from a preprocessor_config.json; missing ones are the defaults of its image processor."""
    preprocessor = _with_defaults(path, preprocessor, config)
    if preprocessor.get("do_normalize", True) is False:
        preprocessor = {**preprocessor, "image_mean": 0.0, "image_std": 1.0}
    factor = preprocessor.get("rescale_factor", 1 / 255)
    if not isinstance(factor, (int, float)) or abs(factor * 255 - 1) > 1e-3 or preprocessor.get("do_rescale") is False:
        raise ValueError(
            f"Cannot load {path!r}: its preprocessor_config.json does not scale images by 1/255. Expected "
            f"do_rescale=true and rescale_factor=1/255. Received: {preprocessor.get('do_rescale')!r}, {factor!r}"
        )
    resample = preprocessor["resample"]
    if type(resample) is not int or resample not in _RESAMPLE:
        raise _unreadable(path, f"resample as one of {', '.join(map(str, _RESAMPLE))}", resample)
    channels = config.get("num_channels", 3)
    for name in ("image_mean", "image_std"):
        constants = preprocessor[name]
        if isinstance(constants, (list, tuple)) and len(constants) not in (1, channels):
            raise _unreadable(path, f"{name} as one number, or one for each of {channels} channels", constants)
    return {
        "mean": preprocessor["image_mean"],
        "std": preprocessor["image_std"],
        "interpolation": _RESAMPLE[resample],
        **_by_pillow(_RESAMPLE[resample]),
        **_resizing(path, preprocessor),
        "crop_rounding": "down",
    }


def _with_defaults(path, preprocessor, config):
    """Returns a preprocessor_config.json with the defaults of the image processor that transformers would take."""
    kind = preprocessor.get("image_processor_type") or preprocessor.get("feature_extractor_type")
    if kind is None:
        name = _PROCESSOR_OF.get(config.get("model_type"), "ViT")
    else:
        name = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", str(kind))
    if name not in PROCESSORS:
        known = ", ".join(f"{known}ImageProcessor" for known in PROCESSORS)
        raise _unreadable(path, f"image_processor_type as one of {known}", kind)
    if preprocessor.get("do_resize") is False:
        raise _unreadable(path, "do_resize=true", False)
    stated = {key: value for key, value in preprocessor.items() if value is not None}
    return {**PROCESSORS[name], **stated, "processor": name}


def _resizing(path, preprocessor):
    """Returns `resize_mode` and `crop_fraction`."""
    size = preprocessor["size"]
    if isinstance(size, dict):
        size = {name: side for name, side in size.items() if side is not None}
    side, crop = (_side(path, key, preprocessor.get(key)) for key in ("size", "crop_size"))
    if isinstance(size, dict) and set(size) not in ({"shortest_edge"}, {"height", "width"}):
        raise _unreadable(path, "size with shortest_edge, or with height and width", size)
    if isinstance(size, (dict, list)):
        keeps_shape = "shortest_edge" in size
    else:
        keeps_shape = not preprocessor.get("default_to_square", True)
    if preprocessor["processor"] == "ConvNext":
        if side >= _SQUASHED_BY_CONVNEXT:
            return {"resize_mode": "squash", "crop_fraction": 1.0}
        return {"resize_mode": "crop", "crop_fraction": preprocessor["crop_pct"]}
    cropped = preprocessor.get("do_center_crop") and crop
    return {
        "resize_mode": "crop" if keeps_shape else "squash",
        "crop_fraction": min(crop / side, 1.0) if cropped else 1.0,
    }


def size_of_images(path, preprocessor):
    """Returns the side of the square images that a preprocessor_config.json makes, or None if it is not stated."""
    name = "crop_size" if preprocessor.get("do_center_crop") else "size"
    return _side(path, name, preprocessor.get(name))


def _by_pillow(interpolation):
    """Returns the antialiasing: Pillow antialiases with all filters except "nearest"."""
    return {} if interpolation == "nearest" else {"antialias": True}


def _side(path, name, size):
    """Returns the shorter side of a size in transformers: a number, or a dict of sides; None if it is not stated."""
    sides = [side for side in size.values() if side is not None] if isinstance(size, dict) else [size]
    try:
        return None if size is None or not sides else min(arguments.image_size(side)[0] for side in sides)
    except ValueError:
        raise _unreadable(path, f"{name} in pixels", size) from None


def _unreadable(path, expected, value):
    return ValueError(f"Cannot load {path!r}: its preprocessor_config.json. Expected {expected}. Received: {value!r}")
