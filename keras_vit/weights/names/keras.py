"""Keras' own .weights.h5 files: layers by name, weights by number."""

from keras_vit.weights.names.source import Name, Source

# The names of a layer's weights, by their index in the order of creation.
_NAMES = (
    ("kernel", "gamma", "tokens", "embeddings", "column_embeddings", "relative_embeddings", "probe"),
    ("bias", "beta", "row_embeddings"),
    ("prefix_embeddings",),
)
_NUMBERS = {name: number for number, names in enumerate(_NAMES) for name in names}


class KerasSource(Source):
    """A Source that maps weights by a rule instead of a table."""

    def find(self, weight):
        layer, _, name = weight.rpartition("/")
        return Name((f"{layer}/{_NUMBERS[name]}",)) if name in _NUMBERS else None

    def weight_of(self, key):
        layer, _, number = key.rpartition("/")
        if layer == "position_embedding":
            return f"{layer}/embeddings"
        names = ("kernel", "bias")
        if layer.rpartition("/")[2].startswith(("norm", "root_norm", "query_norm", "key_norm", "fc_norm")):
            names = ("gamma", "beta")
        elif layer.rpartition("/")[2].startswith("layer_scale"):
            names = ("gamma",)
        elif layer in ("class_token", "distillation_token", "registers"):
            names = ("tokens",)
        elif layer == "pooling":
            names = ("probe",)
        return f"{layer}/{names[int(number)]}" if number.isdecimal() and int(number) < len(names) else None

    def knows(self, keys):
        return "patch_embedding/0" in keys or "root_conv/0" in keys


KERAS = KerasSource("keras", {}, activation=None, layer_norm_epsilon=None, resnet_epsilons=None)
