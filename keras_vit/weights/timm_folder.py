"""The config.json of folders that timm loads: what the models of all families share."""

from keras_vit.config import DEFAULT_IMAGE_SIZE, Preprocessing
from keras_vit.weights.transformers_folder import unit_constants

_MODES = {"crop": "center", "squash": "squash", "pad": "border"}
_FILTERS = {"lanczos3": "lanczos", "lanczos5": "lanczos", "area": "box"}


def pretrained_cfg(config, facts, image_size, first_conv, classifier):
    """Returns the entry `pretrained_cfg`, given the keys of the first convolution and of the head."""
    preprocessing = Preprocessing(**facts["preprocessing"])
    mean, std = unit_constants(preprocessing, config.in_channels)
    interpolation = preprocessing.interpolation
    found = {
        "input_size": [config.in_channels, *image_size],
        "fixed_input_size": None not in config.image_size and config.family == "vit",
        "interpolation": _FILTERS.get(interpolation, interpolation),
        "crop_pct": preprocessing.crop_fraction,
        "crop_mode": _MODES[preprocessing.resize_mode],
        "mean": mean,
        "std": std,
        "num_classes": config.num_classes,
        "pool_size": None,
        "first_conv": first_conv,
        "classifier": classifier,
    }
    if config.class_names is not None:
        found["label_names"] = list(config.class_names)
    return found


def config_json(name, config, num_features, pool, pretrained, args):
    """Returns the contents of config.json, given timm's architecture and its `model_args`."""
    return {
        "architecture": name,
        "num_classes": config.num_classes,
        "num_features": num_features,
        "global_pool": pool,
        "pretrained_cfg": pretrained,
        "model_args": args,
    }


def without_patches(name, config, num_features, facts, ends, args):
    """Returns the contents of config.json of a model without patches; `ends` are its first convolution and head."""
    image_size = [DEFAULT_IMAGE_SIZE] * 2 if None in config.image_size else list(config.image_size)
    args = args | ({} if config.in_channels == 3 else {"in_chans": config.in_channels})
    return config_json(name, config, num_features, "avg", pretrained_cfg(config, facts, image_size, *ends), args)
