"""Reads the arrays of a file by canonical keys, the keys in `Source.names`. A `Source` describes a file format."""

import contextlib
from typing import NamedTuple

from keras_vit.weights.read.file import refuse
from keras_vit.weights.source import unwrapped

# The largest allowed number of transformer blocks along the first axis of one array. Damaged files could have more.
_MOST_BLOCKS = 1000


class ArrayLocation(NamedTuple):
    """The key of a weight's array in a file. If the array stacks a weight of all blocks, `index` numbers the block."""

    key: str
    index: int | None = None

    def __str__(self):
        return self.key if self.index is None else f"{self.key}[{self.index}]"


class CanonicalFile:
    """An open `WeightsFile` whose arrays can be read by the keys in `Source.names`.

    If an array contains a weight for all blocks, it is read as one array per block. If the file contains a larger
    model, such as CLIP, `prefix` is the prefix of the model's keys, such as "visual.".
    """

    def __init__(self, file, source, prefix=""):
        self.file, self.path, self.facts, self.container = file, file.path, file.facts, file.container
        self.prefix = prefix
        own = file.facts.get("keras_vit")
        self.own = own if isinstance(own, dict) else {}
        if not isinstance(self.own.get("config", {}), dict):
            what = f"its metadata is damaged. Expected config as a dict. Received: {own['config']!r}"
            raise refuse(file.path, what)
        try:
            entries, inner = file.entries, below(file.entries, prefix)
            canonical, ignored = source.canonical_keys({name: entries[key] for name, key in inner.items()})
        except ValueError as error:
            raise ValueError(f"Cannot read weights from {self.path!r}: {error}") from None
        canonical = {name: inner[key] for name, key in canonical.items()}
        # `ignored` are keys that hold no weights. `outside` are keys without the prefix, which belong to other modules.
        self.ignored = [inner[key] for key in ignored]
        self.outside = sorted(entries.keys() - inner.values())
        source.refuse_keys(self.path, canonical, self.model_name)
        self.source = source.with_variant_names(canonical)
        self.places = self._unstacked(canonical)
        self.shapes = {name: self._shape(place) for name, place in self.places.items()}
        # {path of a model weight: its shape in the model}, for each weight whose arrays are all in the file.
        self.weights = self._weights()

    @property
    def config(self):
        """The config.json of a folder, or {}. In image-text models, the image tower's config takes precedence."""
        config = self.facts.get("config")
        if not isinstance(config, dict):
            return {}
        # Folders of old transformers versions contain "vision_config_dict", which overrides "vision_config".
        inner = config.get("vision_config_dict") or config.get("vision_config")
        return {**config, **inner} if isinstance(inner, dict) else config

    @property
    def model_name(self):
        """The architecture (timm) or model type (transformers) in config.json, or None."""
        return self.config.get("architecture") or self.config.get("model_type")

    @property
    def layers(self):
        return {weight.split("/")[0] for weight in self.weights}

    def size(self, weight, rank, axis):
        """Returns the size of an axis of a weight, or None if the weight is missing or its rank is not `rank`."""
        shape = self.weights.get(weight, ())
        return shape[axis] if len(shape) == rank else None

    def _unstacked(self, canonical):
        """Returns {canonical key: ArrayLocation}. An array that contains all blocks gets one key for each block."""
        places = {}
        for name, key in canonical.items():
            if self.source.stacked and name.startswith(self.source.stacked[0]):
                prefix, template = self.source.stacked
                count = next(iter(self.file.entries[key].shape), 0)
                if count > _MOST_BLOCKS:
                    raise refuse(self.path, f"{key!r} stacks {count:,} blocks, more than {_MOST_BLOCKS:,}")
                for i in range(count):
                    places[template.format(i) + name.removeprefix(prefix)] = ArrayLocation(key, i)
            elif name == "embeddings.register_tokens" and 0 in self.file.entries[key].shape:
                # A DINOv3 without register tokens stores an empty array for them.
                self.ignored.append(key)
            else:
                places[name] = ArrayLocation(key)
        return places

    def _shape(self, place):
        shape = tuple(self.file.entries[place.key].shape)
        return shape if place.index is None else shape[1:]

    def _weights(self):
        found = {}
        for key in self.shapes:
            weight = self.source.find_weight_path(key)
            name = weight and self.source.find(weight)
            if name and all(key in self.shapes for key in name.keys):
                # Leave arrays of the wrong rank out. `Plan` reports them when it matches the file with a model.
                with contextlib.suppress(IndexError, ValueError):
                    found[weight] = name.codec.model_shape(tuple(self.shapes[key] for key in name.keys))
        return found

    def read(self, keys):
        """Yields (canonical key, array) for the given canonical keys; reads each array of the file once."""
        by_place = {}
        for key in dict.fromkeys(keys):
            by_place.setdefault(self.places[key].key, []).append(key)
        for place, array in self.file.read(by_place):
            for key in by_place[place]:
                index = self.places[key].index
                yield key, array if index is None else array[index]


def below(keys, prefix):
    """Returns {key without the prefix: key in the file} for the keys that begin with the prefix."""
    if not prefix:
        return {key: key for key in keys}
    names = {key: unwrapped(key) for key in keys}
    return {name.removeprefix(prefix): key for key, name in names.items() if name.startswith(prefix)}
