"""Rename tables, which are read in both directions."""

import copy
import re
from typing import NamedTuple

from keras_vit.weights import codecs

OFFICIAL_PREPROCESSING = {"mean": 0.5, "std": 0.5, "interpolation": "bilinear", "crop_fraction": 1.0}
IMAGENET_PREPROCESSING = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "interpolation": "bicubic",
    "crop_fraction": 0.875,
}


class Name(NamedTuple):
    """One row: the file's keys of one model weight, and how their arrays become it."""

    keys: tuple
    codec: codecs.Same = codecs.Same()


class Source:
    """A code base's checkpoint format.

    Args:
        name: String, the name of the source.
        names: Dict from a weight's path in the model to its Name. "{block:02d}", "{stage}" and "{unit:02d}" stand for
            numbers, in the paths and in the keys alike.
        activation: The activation of its models; None if its files do not tell it.
        layer_norm_epsilon: The epsilon of their norms, or None.
        position_interpolation: How its code resizes position embeddings, one of `POSITION_METHODS`.
        class_token_position: Whether its code adds position embeddings to the class token too. It decides where the
            length of a table fits both.
        preprocessing: Dict of the constants that its models are evaluated with.
        aliases: (regular expression, replacement) pairs that turn other spellings of keys into those of `names`.
        ignored: Regular expression of keys that hold no weights of this model, such as an optimizer's state.
        prefixes: Prefixes that all keys of weights may carry.
        required: Weights that its code cannot do without.
        stacked: (prefix, template) if its files may keep all blocks in one array each, stacked on the first axis.
    """

    def __init__(
        self,
        name,
        names,
        *,
        activation="gelu",
        layer_norm_epsilon=1e-6,
        position_interpolation="linear",
        class_token_position=True,
        preprocessing=OFFICIAL_PREPROCESSING,
        aliases=(),
        ignored=r"(?!)",
        prefixes=(),
        required=(),
        stacked=None,
    ):
        self.name = name
        self.names = names
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.position_interpolation = position_interpolation
        self.class_token_position = class_token_position
        self.preprocessing = preprocessing
        self.required = required
        self.stacked = stacked
        self._aliases = [(re.compile(pattern), replacement) for pattern, replacement in aliases]
        self._ignored = re.compile(ignored)
        self._prefixes = prefixes
        self._by_weight = [(_pattern(weight), name) for weight, name in names.items() if "{" in weight]
        self._by_key = [(_pattern(key), weight) for weight, name in names.items() for key in name.keys]

    def but(self, name, **changes):
        """Returns a Source with the same table, under another name and with some attributes changed."""
        other = copy.copy(self)
        vars(other).update(name=name, **changes)
        return other

    def canonical_keys(self, keys):
        """Returns ({key as in `names`: key as in the file}, [keys that hold no weights])."""
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
        if weight in self.names:
            return self.names[weight]
        for pattern, name in self._by_weight:
            match = pattern.fullmatch(weight)
            if match:
                numbers = {field: int(number) for field, number in match.groupdict().items()}
                return Name(tuple(key.format(**numbers) for key in name.keys), name.codec)
        return None

    def weight_of(self, key):
        """Returns the path of the (first) model weight that a canonical key belongs to, or None if it is unknown."""
        for pattern, weight in self._by_key:
            match = pattern.fullmatch(key)
            if match:
                return weight.format(**{field: int(number) for field, number in match.groupdict().items()})
        return None

    def layer_of(self, key):
        """Returns the name of the model layer that a canonical key belongs to, or None if it is unknown."""
        weight = self.weight_of(key)
        return weight and weight.split("/")[0]

    def knows(self, keys):
        """Whether the keys have the layer that images enter under this source's name."""
        canonical, _ = self.canonical_keys(keys)
        return any(self.names[weight].keys[0] in canonical for weight in ENTRANCES if weight in self.names)


# The layers that images enter; each file has one of them.
ENTRANCES = ("patch_embedding/kernel", "root_conv/kernel")


def _pattern(template):
    """The regular expression of a template: "block_{block:02d}/" matches "block_07/" and names its number."""
    parts = re.split(r"\{(\w+)(?::\w+)?\}", template)
    return re.compile("".join(rf"(?P<{part}>\d+)" if i % 2 else re.escape(part) for i, part in enumerate(parts)))
