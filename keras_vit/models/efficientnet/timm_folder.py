"""Builds the config.json of EfficientNet folders that timm loads."""

from keras_vit.models.efficientnet.checkpoint import OF_TIMM, OFFICIAL
from keras_vit.models.efficientnet.config import efficientnet_name
from keras_vit.weights import timm_config


def unwritten_in_folder(config):
    """Yields the properties of a config that the config.json of a timm folder cannot express."""
    if _name(config) is None:
        yield "a size or options for which timm has no name"


def config_json(config, arrays, facts):
    """Returns the contents of config.json."""
    num_features = arrays["classifier.weight"].shape[1] if config.num_classes else None
    ends = ("conv_stem", "classifier")
    return timm_config.config_json(_name(config), config, facts, ends, {}, num_features=num_features)


def _name(config):
    """Returns the name of the timm architecture with the settings of a config, or None."""
    name = efficientnet_name(config.widths, config.repeats)
    for prefix, settings in (("tf_", OFFICIAL), ("", OF_TIMM)):
        if name and all(getattr(config, field) == value for field, value in settings.items()):
            return f"{prefix}efficientnet_{name.lower()}"
    return None
