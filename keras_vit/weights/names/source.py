"""Rename tables, which are read in both directions."""

import dataclasses
import functools
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


@dataclasses.dataclass(frozen=True, eq=False)
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

    name: str
    names: dict
    activation: str | None = "gelu"
    layer_norm_epsilon: float | None = 1e-6
    position_interpolation: str = "linear"
    class_token_position: bool = True
    preprocessing: dict = dataclasses.field(default_factory=OFFICIAL_PREPROCESSING.copy)
    aliases: tuple = ()
    ignored: str = r"(?!)"
    prefixes: tuple = ()
    required: tuple = ()
    stacked: tuple | None = None

    def canonical_keys(self, keys):
        """Returns ({key as in `names`: key as in the file}, [keys that hold no weights])."""
        canonical, ignored = {}, []
        for key in keys:
            if re.match(self.ignored, key):
                ignored.append(key)
                continue
            name = key
            for prefix in self.prefixes:
                name = name.removeprefix(prefix)
            for pattern, replacement in self.aliases:
                name = re.sub(pattern, replacement, name)
            if name in canonical:
                raise ValueError(f"The file holds the same weight twice, as {canonical[name]!r} and as {key!r}.")
            canonical[name] = key
        return canonical, ignored

    def find(self, weight):
        """Returns the Name of a model weight by its path, or None if the source has no such weight."""
        for path, name in self.names.items():
            numbers = _numbers(path, weight)
            if numbers is not None:
                return Name(tuple(key.format(**numbers) for key in name.keys), name.codec)
        return None

    def weight_of(self, key):
        """Returns the path of the (first) model weight that a canonical key belongs to, or None if it is unknown."""
        for path, name in self.names.items():
            for own in name.keys:
                numbers = _numbers(own, key)
                if numbers is not None:
                    return path.format(**numbers)
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


def _numbers(template, text):
    """{"block": 7} for the template "block_{block:02d}/" and the text "block_07/"; None if they do not match."""
    match = _pattern(template).fullmatch(text)
    return match and {field: int(number) for field, number in match.groupdict().items()}


@functools.cache
def _pattern(template):
    parts = re.split(r"\{(\w+)(?::\w+)?\}", template)
    return re.compile("".join(rf"(?P<{part}>\d+)" if i % 2 else re.escape(part) for i, part in enumerate(parts)))
