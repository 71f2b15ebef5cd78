"""Rename tables: where each source keeps the weights of a model. One table a source, read in both directions."""

import re
from typing import NamedTuple

from keras_vit.weights import codecs


class Name(NamedTuple):
    """One row: the file's keys of one model weight, and how their arrays become it."""

    keys: tuple
    codec: type = codecs.Same


class Source:
    """A code base's checkpoint format.

    Args:
        name: String, the name of the source.
        activation: String, the activation that its models use.
        layer_norm_epsilon: Float, the epsilon of their norms.
        names: Dict from a weight's path in the model to its Name; "block_*" stands for each block, "{block}" for its
            index.
        aliases: (regular expression, replacement) pairs that turn other spellings of the file's keys into those of
            `names`.
        ignored: Regular expression of keys that hold no weights, as an optimizer's state.
        prefixes: Prefixes that all keys of weights may carry.
    """

    def __init__(self, name, activation, layer_norm_epsilon, names, aliases=(), ignored=r"(?!)", prefixes=()):
        self.name = name
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.names = names
        self._aliases = [(re.compile(pattern), replacement) for pattern, replacement in aliases]
        self._ignored = re.compile(ignored)
        self._prefixes = prefixes

    def canonical_keys(self, keys):
        """Returns ({key as in `names`: key as in the file}, [keys that hold no weights]).

        Raises:
            ValueError: If two keys of the file stand for the same weight.
        """
        canonical, ignored = {}, []
        for key in keys:
            if self._ignored.match(key):
                ignored.append(key)
                continue
            name = key
            for prefix in self._prefixes:
                name = name.removeprefix(prefix)
            for pattern, replacement in self._aliases:
                name = pattern.sub(replacement, name)
            if name in canonical:
                raise ValueError(f"The file holds the same weight twice, as {canonical[name]!r} and as {key!r}.")
            canonical[name] = key
        return canonical, ignored

    def find(self, weight):
        """Returns the Name of a model weight by its path, or None if the source has no such weight."""
        match = re.match(r"block_(\d+)/", weight)
        if match is None:
            return self.names.get(weight)
        name = self.names.get("block_*/" + weight[match.end() :])
        return name and Name(tuple(key.format(block=int(match[1])) for key in name.keys), name.codec)

    def layer_of(self, key):
        """Returns the name of the model layer that a canonical key belongs to, or None if it is unknown."""
        block = re.search(self._block_pattern, key)
        if block:
            return f"block_{int(block[1]):02d}"
        return next((weight.split("/")[0] for weight, name in self.names.items() if key in name.keys), None)

    @property
    def _block_pattern(self):
        key = self.names["block_*/norm_1/gamma"].keys[0]
        return "^" + re.escape(key[: key.index("{block}")]) + r"(\d+)/"


_BLOCK = "Transformer/encoderblock_{block}/"
_ATTENTION = _BLOCK + "MultiHeadDotProductAttention_1/"


def _qkv(part):
    return tuple(f"{_ATTENTION}{name}/{part}" for name in ("query", "key", "value"))


# The official Flax code's .npz files, by their published names.
OFFICIAL = Source(
    "official",
    activation="gelu_tanh",
    layer_norm_epsilon=1e-6,
    names={
        "patch_embedding/kernel": Name(("embedding/kernel",)),
        "patch_embedding/bias": Name(("embedding/bias",)),
        "class_token/tokens": Name(("cls",)),
        "position_embedding/embeddings": Name(("Transformer/posembed_input/pos_embedding",)),
        "block_*/norm_1/gamma": Name((_BLOCK + "LayerNorm_0/scale",)),
        "block_*/norm_1/beta": Name((_BLOCK + "LayerNorm_0/bias",)),
        "block_*/attention/qkv/kernel": Name(_qkv("kernel"), codecs.FusedKernel),
        "block_*/attention/qkv/bias": Name(_qkv("bias"), codecs.FusedBias),
        "block_*/attention/out/kernel": Name((_ATTENTION + "out/kernel",), codecs.OutKernel),
        "block_*/attention/out/bias": Name((_ATTENTION + "out/bias",)),
        "block_*/norm_2/gamma": Name((_BLOCK + "LayerNorm_2/scale",)),
        "block_*/norm_2/beta": Name((_BLOCK + "LayerNorm_2/bias",)),
        "block_*/mlp/dense_1/kernel": Name((_BLOCK + "MlpBlock_3/Dense_0/kernel",)),
        "block_*/mlp/dense_1/bias": Name((_BLOCK + "MlpBlock_3/Dense_0/bias",)),
        "block_*/mlp/dense_2/kernel": Name((_BLOCK + "MlpBlock_3/Dense_1/kernel",)),
        "block_*/mlp/dense_2/bias": Name((_BLOCK + "MlpBlock_3/Dense_1/bias",)),
        "norm/gamma": Name(("Transformer/encoder_norm/scale",)),
        "norm/beta": Name(("Transformer/encoder_norm/bias",)),
        "pre_logits/kernel": Name(("pre_logits/kernel",)),
        "pre_logits/bias": Name(("pre_logits/bias",)),
        "head/kernel": Name(("head/kernel",)),
        "head/bias": Name(("head/bias",)),
    },
    # Newer Flax numbers submodules by class, older Flax by their place in the block.
    aliases=[
        (r"(?<=/)MultiHeadDotProductAttention_0(?=/)", "MultiHeadDotProductAttention_1"),
        (r"(?<=/)LayerNorm_1(?=/)", "LayerNorm_2"),
        (r"(?<=/)MlpBlock_0(?=/)", "MlpBlock_3"),
    ],
    ignored=r"opt/state/",
    prefixes=("opt/target/",),
)

SOURCES = {source.name: source for source in (OFFICIAL,)}


def recognise(keys):
    """Returns the Source that a file's keys belong to, or None."""
    names, _ = OFFICIAL.canonical_keys(keys)
    return OFFICIAL if "embedding/kernel" in names and any("encoderblock_" in name for name in names) else None
