"""The image preprocessing constants that checkpoints come with: said by a config, or their source's own."""

import dataclasses

from keras_vit.model_config import preprocessing_record
from keras_vit.preprocessing import Preprocessing
from keras_vit.weights.names.source import IMAGENET_PREPROCESSING, OFFICIAL_PREPROCESSING

# timm's names.
_TIMM_MODES = {"center": "crop", "squash": "squash", "border": "pad"}
_TIMM_FILTERS = {"lanczos": "lanczos3", "box": "area"}
# Pillow's numbers of its filters.
_RESAMPLE = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic", 4: "area"}


def preprocessing_of(checkpoint, record, in_channels, **given):
    """The image preprocessing of a model: as given, else that of its weights, else the official one.

    Args:
        checkpoint: A Checkpoint, or None.
        record: A `Preprocessing`, or None.
        in_channels: Int, the images' channels: constants of another number are averaged.
        **given: Some of its fields, None where not given.

    Returns:
        A `Preprocessing`.

    Raises:
        ValueError: If `record` is something else, or a value cannot be.
    """
    if record is None:
        record = Preprocessing(**({} if checkpoint is None else checkpoint.preprocessing))
    record = preprocessing_record(record).for_channels(in_channels)
    return record.changed(**{name: value for name, value in given.items() if value is not None})


def of_own(facts):
    """Reads the fields of a `Preprocessing` that a file of this package's own holds."""
    return {field.name: facts[field.name] for field in dataclasses.fields(Preprocessing) if field.name in facts}


def of_timm(config):
    """Reads the constants from timm's pretrained_cfg; what it does not say is the official code's."""
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
    found = {name: OFFICIAL_PREPROCESSING[name] if value is None else value for name, value in found.items()}
    if filter is not None:
        found |= _by_pillow(found["interpolation"])
    if mode is not None or config.get("crop_pct") is not None:
        found["resize_mode"] = _TIMM_MODES[mode or "center"]
    return found


def of_huggingface(path, preprocessor, config):
    """Reads the constants from transformers' preprocessor_config.json, or takes those usual for the kind of model.

    Args:
        path: Path of the folder, for errors.
        preprocessor: Dict of that file, or None where there is none.
        config: Dict of config.json.

    Returns:
        Dict of `mean`, `std`, `interpolation`, `antialias`, `crop_fraction` and `resize_mode`.

    Raises:
        ValueError: If it scales images otherwise than by 1/255.
    """
    if not isinstance(preprocessor, dict):
        # What the published models of each kind come with.
        kind = str(config.get("model_type"))
        return IMAGENET_PREPROCESSING if kind.startswith(("deit", "dinov2")) else OFFICIAL_PREPROCESSING
    if preprocessor.get("do_normalize", True) is False:
        preprocessor = {**preprocessor, "image_mean": 0.0, "image_std": 1.0}
    factor = preprocessor.get("rescale_factor", 1 / 255)
    if not isinstance(factor, (int, float)) or abs(factor * 255 - 1) > 1e-3 or preprocessor.get("do_rescale") is False:
        raise ValueError(
            f"Cannot load {path!r}: its preprocessor_config.json does not scale images by 1/255. Expected "
            f"do_rescale=true and rescale_factor=1/255. Received: {preprocessor.get('do_rescale')!r}, {factor!r}"
        )
    size, crop = (_side(preprocessor.get(key)) for key in ("size", "crop_size"))
    cropped = preprocessor.get("do_center_crop") and size and crop
    interpolation = _RESAMPLE.get(preprocessor.get("resample"), OFFICIAL_PREPROCESSING["interpolation"])
    return {
        "mean": preprocessor.get("image_mean", OFFICIAL_PREPROCESSING["mean"]),
        "std": preprocessor.get("image_std", OFFICIAL_PREPROCESSING["std"]),
        "interpolation": interpolation,
        **_by_pillow(interpolation),
        "crop_fraction": min(crop / size, 1.0) if cropped else 1.0,
        "resize_mode": "crop" if _keeps_shape(preprocessor) else "squash",
    }


def _by_pillow(interpolation):
    """Pillow antialiases in any way but the nearest pixel's."""
    return {} if interpolation == "nearest" else {"antialias": True}


def _keeps_shape(preprocessor):
    """Whether images are resized by their shorter side."""
    size = preprocessor.get("size")
    if isinstance(size, dict):
        return "shortest_edge" in size
    # A number alone is a square, but for the classes that always kept the shape.
    kind = str(preprocessor.get("image_processor_type") or preprocessor.get("feature_extractor_type"))
    return kind.startswith(("Bit", "CLIP"))


def _side(size):
    """The shorter side of a size as transformers writes it: a number, or a dict of sides."""
    if isinstance(size, dict):
        sides = [side for side in size.values() if isinstance(side, int) and side > 0]
        return min(sides, default=None)
    return size if isinstance(size, int) and size > 0 else None
