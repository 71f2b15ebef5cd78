"""The names of weights in Keras' own .weights.h5 files, which number the weights of each layer."""

import re

from keras_vit.weights.source import Name, Source

# Keras numbers the weights of a layer in the order of creation. Row i contains the possible names of weight i.
_NAMES = (
    ("kernel", "gamma", "tokens", "embeddings", "column_embeddings", "relative_embeddings", "probe"),
    ("bias", "beta", "row_embeddings"),
    ("prefix_embeddings", "moving_mean"),
    ("moving_variance",),
)
_NUMBERS = {name: number for number, names in enumerate(_NAMES) for name in names}


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
            names = ("gamma", "beta", "moving_mean", "moving_variance")
        elif layer.rpartition("/")[2].startswith("layer_scale"):
            names = ("gamma",)
        elif layer in ("class_token", "distillation_token", "registers"):
            names = ("tokens",)
        elif layer == "pooling":
            names = ("probe",)
        return f"{layer}/{names[int(number)]}" if number.isdecimal() and int(number) < len(names) else None

    def matches(self, keys):
        return any(re.match(self.mark, key) for key in keys)


def keras_source(family, first_block):
    """Returns the `Source` of a family's .weights.h5 files. A file fits if it has the layer `first_block`."""
    unknown = dict.fromkeys(("activation", "layer_norm_epsilon", "resnet_epsilons"))
    return KerasSource("keras", {}, family=family, mark=f"{first_block}/", **unknown)
