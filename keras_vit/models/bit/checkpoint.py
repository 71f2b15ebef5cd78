"""Reads the config of a BiT from a checkpoint, and converts it for timm and transformers."""

import re

from keras_vit.models.bit.config import ROOT_WIDTH, BiTConfig
from keras_vit.models.bit.names import HUGGINGFACE_BIT
from keras_vit.weights import timm_config, transformers_config
from keras_vit.weights.found import STATED, put_preprocessing, put_settings
from keras_vit.weights.record import begin, read_record

# The keys of transformers' config.json whose values follow from the arrays.
_READ = ("embedding_size", "hidden_sizes", "depths")
# Error messages give this reason if a file does not state a setting of a ResNet.
DIFFERENT_CODE = "it differs between the code bases that read such files"
# The depths and width factors of timm's BiTs.
_TIMM = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")


def read_config(file, grid_size=None):
    """Returns the config fields of a `CanonicalFile` as a `Found`."""
    found, source = begin(file, "root_conv/kernel"), file.source
    stated = {**file.config, **timm_config.model_args(file)}
    for setting, value in source.config.items():
        if stated.get(setting, value) != value:
            what = f"{setting}={stated[setting]!r}, which is not supported. Expected: {value!r}"
            raise source.refusal(file.path, file.model_name, what)
    root_width = file.size("root_conv/kernel", 4, 3)
    if root_width is None:
        found.leave("the shapes of the arrays do not show it", "stages", "width_factor")
    else:
        found.put(STATED, stages=stages_from_layers(file.layers), width_factor=root_width / ROOT_WIDTH)
    if "config" in file.own:
        read_record(file, found)
        return found
    put_preprocessing(found, source, source.preprocessing)
    if file.container == "timm":
        timm_config.read_folder(file, found)
    elif file.container == "huggingface":
        transformers_config.read_folder(file, found, {*_READ, *source.config})
    put_settings(found, source, "resnet_epsilons", "pool_padding", reason=DIFFERENT_CODE)
    return found


def stages_from_layers(layers):
    """Returns the number of units in each stage of a ResNet, given the names of its layers."""
    found = [int(match[1]) for match in (re.fullmatch(r"stage_(\d+)_unit_\d+", name) for name in layers) if match]
    return tuple(found.count(stage) for stage in sorted(set(found)))


def timm_architecture(config):
    """Returns (name of timm's architecture, `model_args`) for a config, as `Family.timm` describes."""
    name = (BiTConfig.name_from_fields(vars(config)) or "").removeprefix("BiT-R")
    if name not in _TIMM:
        sizes = f"stages {config.stages} and width factor {config.width_factor:g}"
        raise ValueError(f"a ResNet of {sizes}, for which timm has no name")
    return f"resnetv2_{name}_bit", {}


def transformers_folder(config, facts):
    """Returns (`Source`, prefix of the weight names, contents of config.json), as `Family.transformers` describes."""
    # transformers does not apply its `width_factor` to the first convolution. Write the final widths and a factor of 1.
    width = int(ROOT_WIDTH * config.width_factor)
    content = {
        "architectures": ["BitForImageClassification" if config.num_classes else "BitModel"],
        "model_type": "bit",
        "embedding_size": width,
        "hidden_sizes": [4 * width * 2**i for i in range(len(config.stages))],
        "depths": config.stages,
        **HUGGINGFACE_BIT.config,
    }
    return HUGGINGFACE_BIT, "bit." if config.num_classes else "", content
