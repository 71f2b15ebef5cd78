"""Reads the config of a BiT from a checkpoint."""

import re

from keras_vit.models.bit.config import ROOT_WIDTH
from keras_vit.weights import timm_config, transformers_config
from keras_vit.weights.found import DEFAULT, STATED, put_preprocessing
from keras_vit.weights.record import begin, read_record

# The keys of transformers' config.json whose values follow from the arrays.
_READ = ("embedding_size", "hidden_sizes", "depths")


def read_config(file, grid_size=None):
    """Returns the `Found` of a `CanonicalFile`; ignores `grid_size`, since a BiT has no grid."""
    found, source = begin(file, "root_conv/kernel"), file.source
    source.refuse_settings(file.path, {**file.config, **timm_config.model_args(file)}, file.model_name)
    root_width = file.size("root_conv/kernel", 4, 3)
    if root_width is None:
        found.leave("the shapes of the arrays do not show it", "stages", "width_factor")
    else:
        found.put(STATED, stages=stages_from_layers(file.layers), width_factor=root_width / ROOT_WIDTH)
    if "config" in file.own:
        read_record(file, found)
        return found
    put_preprocessing(found, source)
    if file.container == "timm":
        timm_config.read_folder(file, found)
    elif file.container == "huggingface":
        transformers_config.read_folder(file, found, {*_READ, *source.config})
    for name in ("resnet_epsilons", "pool_padding"):
        if getattr(source, name) is None:
            found.leave("it differs between the code bases that read such files", name)
        else:
            found.put(f"{DEFAULT} {source.name}", **{name: getattr(source, name)})
    return found


def stages_from_layers(layers):
    """Returns the units per stage of a ResNet, given the names of its layers."""
    found = [int(match[1]) for match in (re.fullmatch(r"stage_(\d+)_unit_\d+", name) for name in layers) if match]
    return tuple(found.count(stage) for stage in sorted(set(found)))
