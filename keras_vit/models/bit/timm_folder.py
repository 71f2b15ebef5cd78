"""Builds the config.json of BiT folders that timm loads."""

from keras_vit.models.bit.config import BiTConfig
from keras_vit.weights import timm_config

# The depths and width factors of timm's BiTs.
_BITS = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")


def unwritten_in_folder(config):
    """Yields the properties of a config that the config.json of a timm folder cannot express."""
    if _name(config) is None:
        yield f"a ResNet of stages {config.stages} and width factor {config.width_factor:g}, for which timm has no name"


def config_json(config, arrays, facts):
    """Returns the contents of config.json."""
    ends, num_features = ("stem.conv", "head.fc"), arrays["norm.weight"].shape[0]
    return timm_config.config_json(_name(config), config, facts, ends, {}, num_features=num_features)


def _name(config):
    name = (BiTConfig.name_from_fields(vars(config)) or "").removeprefix("BiT-R")
    return f"resnetv2_{name}_bit" if name in _BITS else None
