"""Folders of CoAtNets that timm loads."""

from keras_vit.config import DEFAULT_IMAGE_SIZE
from keras_vit.models.coatnet.checkpoint import NAMES, SUFFIXES, arguments_of
from keras_vit.models.coatnet.config import CoAtNetConfig
from keras_vit.weights import timm_config


def unwritten_in_folder(config):
    """Yields what the config.json of a folder cannot say of a config."""
    if _name(config) is None:
        yield "a coatnet of a size or with options for which timm has no name"


def config_json(config, arrays, facts):
    """Returns the contents of config.json."""
    num_features = arrays["head.fc.weight"].shape[1] if config.num_classes else None
    ends, args = ("stem.conv1", "head.fc"), _arguments(config)
    return timm_config.config_json(_name(config), config, facts, ends, args, num_features=num_features)


def _name(config):
    """Returns the name of the architecture that `_arguments` completes, or None if timm cannot compute the same."""
    hidden = config.representation_size is not None
    # Other sides than multiples of the total stride give timm's two branches different sizes.
    odd = None not in config.image_size and any(side % 2 ** (len(config.depths) + 1) for side in config.image_size)
    if config.norm_after_pooling != hidden or (config.pool_type, config.padding) == ("max3", "same") or odd:
        return None
    name = _closest(config)
    return f"{name}{SUFFIXES.get(name, '_224')}"


def _arguments(config):
    """Returns the arguments of timm's model that its name does not set."""
    own, usual = arguments_of(config), arguments_of(CoAtNetConfig.from_variant(_closest(config)))
    found = {key: value for key, value in own.items() if value != usual[key]}
    size = config.image_size if None not in config.image_size else config.table_image_size
    if size not in (None, (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)):
        found["img_size"] = list(size)
    return found


def _closest(config):
    """Returns the row of timm's with the fewest other arguments."""
    own = arguments_of(config)

    def number_of_others(name):
        usual = arguments_of(CoAtNetConfig.from_variant(name))
        return sum(value != usual[key] for key, value in own.items())

    return min(NAMES, key=number_of_others)
