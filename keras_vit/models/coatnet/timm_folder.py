"""Builds the config.json of CoAtNet folders that timm loads."""

from keras_vit.config import DEFAULT_IMAGE_SIZE
from keras_vit.models.coatnet.checkpoint import NAMES, SUFFIXES, maxxvit_arguments
from keras_vit.models.coatnet.config import CoAtNetConfig
from keras_vit.weights import timm_config


def unwritten_in_folder(config):
    """Yields the properties of a config that the config.json of a timm folder cannot express."""
    if _name(config) is None:
        yield "a size or options for which timm has no name"


def config_json(config, arrays, facts):
    """Returns the contents of config.json."""
    num_features = arrays["head.fc.weight"].shape[1] if config.num_classes else None
    ends, args = ("stem.conv1", "head.fc"), _arguments(config)
    return timm_config.config_json(_name(config), config, facts, ends, args, num_features=num_features)


def _name(config):
    """Returns the name of the timm architecture with the settings of a config, or None."""
    # If a side is not a multiple of the total stride, timm's two branches have different sizes.
    odd = None not in config.image_size and any(side % 2 ** (len(config.depths) + 1) for side in config.image_size)
    if odd or config.norm_after_pooling != (config.representation_size is not None):
        return None
    own = maxxvit_arguments(config)
    name = next((name for name in NAMES if maxxvit_arguments(CoAtNetConfig.from_variant(name)) == own), None)
    return name and f"{name}{SUFFIXES.get(name, '_224')}"


def _arguments(config):
    """Returns timm's `img_size` as a dict if it differs from 224, or {}."""
    found = {}
    size = config.image_size if None not in config.image_size else config.table_image_size
    if size not in (None, (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)):
        found["img_size"] = list(size)
    return found
