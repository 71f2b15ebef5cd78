"""Folders of EfficientNets that timm loads."""

from keras_vit.models.efficientnet.checkpoint import OF_TIMM, OFFICIAL
from keras_vit.models.efficientnet.config import efficientnet_of
from keras_vit.weights import timm_config


def unwritten_in_folder(config):
    """Yields what the config.json of a folder cannot say of a config."""
    if _name(config) is None:
        yield "a efficientnet of a size or with options for which timm has no name"


def config_json(config, arrays, facts):
    """Returns the contents of config.json."""
    num_features = arrays["classifier.weight"].shape[1] if config.num_classes else None
    ends, args = ("conv_stem", "classifier"), _arguments(config)
    return timm_config.config_json(_name(config), config, facts, ends, args, num_features=num_features)


def _name(config):
    """Returns the name of timm's architecture for a config, or None."""
    name = efficientnet_of(config.widths, config.repeats)
    return name and f"{'tf_' if config.padding == 'same' else ''}efficientnet_{name.lower()}"


def _arguments(config):
    """Returns the arguments of that architecture which its name does not set."""
    usual = (OFFICIAL if config.padding == "same" else OF_TIMM)["batch_norm_epsilon"]
    return {} if config.batch_norm_epsilon == usual else {"bn_eps": config.batch_norm_epsilon}
