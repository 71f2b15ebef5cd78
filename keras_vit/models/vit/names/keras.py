"""The names of weights in Keras' own .weights.h5 files, which number the weights of each layer."""

import dataclasses

from keras_vit.weights.source import ENTRANCES, Name, Source

# The names of a layer's weights, by their index in the order of creation.
_NAMES = (
    ("kernel", "gamma", "tokens", "embeddings", "column_embeddings", "relative_embeddings", "probe"),
    ("bias", "beta", "row_embeddings"),
    ("prefix_embeddings", "moving_mean"),
    ("moving_variance",),
)
_NUMBERS = {name: number for number, names in enumerate(_NAMES) for name in names}


# The families by the name of their first block.
_FAMILIES = {"block_00/": "vit", "stage_1_block_01/": "efficientnet", "stage_1_unit_01/": "bit"}


class KerasSource(Source):
    """A Source that maps weights by a rule instead of a table."""

    def find(self, weight):
        layer, _, name = weight.rpartition("/")
        return Name((f"{layer}/{_NUMBERS[name]}",)) if name in _NUMBERS else None

    def find_weight_path(self, key):
        layer, _, number = key.rpartition("/")
        if layer == "position_embedding":
            return f"{layer}/embeddings"
        names = ("kernel", "bias")
        if layer.rpartition("/")[2].startswith(("norm", "root_norm", "query_norm", "key_norm", "fc_norm")):
            names = ("gamma", "beta")
        elif layer.endswith("_norm"):
            # Batch normalization.
            names = ("gamma", "beta", "moving_mean", "moving_variance")
        elif layer.rpartition("/")[2].startswith("layer_scale"):
            names = ("gamma",)
        elif layer in ("class_token", "distillation_token", "registers"):
            names = ("tokens",)
        elif layer == "pooling":
            names = ("probe",)
        return f"{layer}/{names[int(number)]}" if number.isdecimal() and int(number) < len(names) else None

    def knows(self, keys):
        return any(f"{entrance.removesuffix('/kernel')}/0" in keys for entrance in ENTRANCES)

    def spelled(self, keys):
        """Returns this source with the family that the keys belong to."""
        families = (family for prefix, family in _FAMILIES.items() if any(key.startswith(prefix) for key in keys))
        return dataclasses.replace(self, family=next(families, "vit"))


KERAS = KerasSource("keras", {}, activation=None, layer_norm_epsilon=None, resnet_epsilons=None)
