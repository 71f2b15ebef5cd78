"""Opens a checkpoint: its shapes, and the config of its model."""

import contextlib
import functools
import math
import numbers
import os
from typing import NamedTuple

from keras_vit import arguments
from keras_vit.models import catalog, fields, preprocessing, rotary
from keras_vit.models.bit.config import total_stride
from keras_vit.models.model_settings import describe_sizes
from keras_vit.models.stated import stated
from keras_vit.models.vit import timm_models
from keras_vit.weights import hub
from keras_vit.weights.published import SOURCES_OF_FILES
from keras_vit.weights.read import check_sha256, open_checkpoint
from keras_vit.weights.read.file import refuse
from keras_vit.weights.read.folders import ShardedFile
from keras_vit.weights.source import unwrapped
from keras_vit.weights.tokens import PREFIX_TOKENS, REGISTERS

# The types of the metadata in files by `save_weights`.
_OWN_TYPES = {
    **dict.fromkeys(("activation", "pooling", "resnet_epsilons", "pool_padding", "padding"), str),
    **{"layer_norm_epsilon": float, "batch_norm_epsilon": float, "preprocessing": dict, "config": dict},
}
# An array of size 0 can claim to stack any number of blocks.
_MOST_BLOCKS = 1000


class Place(NamedTuple):
    """Where an array is: under a key of the file, at an index of its first axis if blocks are stacked."""

    key: str
    index: int | None = None

    def __str__(self):
        return self.key if self.index is None else f"{self.key}[{self.index}]"


class Checkpoint:
    """An open checkpoint, before its arrays are read; the arguments are those of `load_weights`."""

    def __init__(self, path, source=None, grid_size=None, sha256=None):
        self.file = open_checkpoint(hub.local_path(path))
        self.path, self.facts = self.file.path, self.file.facts
        if sha256 is not None:
            check_sha256(self.path, sha256)
            # That of an index says nothing of the files it names.
            self.file.verified |= not isinstance(self.file, ShardedFile)
        self.own = self._own_facts()
        self.config = self._config()
        try:
            # The keys of the model start with `prefix` if the file holds it within another module, as Lightning's do.
            self.source, self.prefix = self._source(source)
            entries, inner = self.file.entries, self._below(self.prefix)
            canonical, ignored = self.source.canonical_keys({name: entries[key] for name, key in inner.items()})
            canonical = {name: inner[key] for name, key in canonical.items()}
            self.ignored = [inner[key] for key in ignored]
            self.outside = sorted(entries.keys() - inner.values())
        except ValueError as error:
            raise ValueError(f"Cannot read weights from {self.path!r}: {error}") from None
        fields.refuse_unsupported(self, canonical)
        self.source = self.source.spelled(canonical)
        if self.file.container == "huggingface":
            self.config = {**self.source.config_defaults, **self.config}
        self.places = self._unstacked(canonical)
        # By canonical key: without prefixes, aliases and stacking.
        self.shapes = {name: self._shape(place) for name, place in self.places.items()}
        self.weights = self._weights()
        # Fields told by the name of timm's model, and {field: reason} for those that stay unknown.
        self.of_timm, self.unknown_of_timm = self._of_timm()
        self.image_size = fields.image_size(self)
        # Whether the caller or the file states the grid, rather than it being inferred.
        self.says_grid = False
        self.num_prefix_positions, self.grid_size = self._positions(grid_size)
        self.position_interpolation = self._position_interpolation()
        # The fields of rotary positions, and {field: reason} for those that stay unknown.
        self.rotary, self.unknown_rotary = rotary.of_checkpoint(self)
        self.settings = fields.settings(self)
        self.preprocessing, self.says_preprocessing = preprocessing.of_checkpoint(self)
        self.sizes = fields.sizes(self)

    @property
    def family(self):
        """The family of its model, as in the config."""
        return self.source.family or ("vit" if self.sizes["num_layers"] else "bit")

    @functools.cached_property
    def stated(self):
        """What is known of the model's config, as a `Stated`."""
        return stated(self)

    def _own_facts(self):
        facts = self.facts.get("keras_vit")
        facts = facts if isinstance(facts, dict) else {}
        for name, value in facts.items():
            if name in _OWN_TYPES and not isinstance(value, _OWN_TYPES[name]):
                raise ValueError(f"Cannot read weights from {self.path!r}: it says {name}={value!r}, which is invalid.")
        return facts

    def _config(self):
        config = self.facts.get("config")
        if not isinstance(config, dict):
            return {}
        # An image-text model has a nested config for its image tower; that of old files comes first.
        inner = config.get("vision_config_dict") or config.get("vision_config")
        return {**config, **inner} if isinstance(inner, dict) else config

    def _of_timm(self):
        if "config" in self.own or self.source.name not in ("timm", "deit", "open_clip_timm"):
            return {}, {}
        if self.file.container == "timm":
            found = timm_models.of_folder(self.path, self.config)
            return found, timm_models.unknown_of_folder(self.config, found)
        # DeiT III's own files have the layer scales of `Eva`.
        marks = [key for key in self.shapes if timm_models.of_eva(key)]
        of_deit = self.source.name == "deit" and all("gamma" in key for key in marks)
        return {}, timm_models.unknown_of_arrays(self.weights, bool(marks) and not of_deit)

    def _source(self, source):
        """Returns the Source of the file, and the prefix of the model's keys if other modules surround it."""
        published = catalog.SOURCES.get(SOURCES_OF_FILES.get(os.path.basename(self.path)))
        if source is not None:
            given = catalog.SOURCES[arguments.one_of("source", source, catalog.SOURCES)]
        elif published is not None and published.knows(self.file.entries):
            given = published
        else:
            given = None

        def recognise(keys):
            if given is not None:
                return given if given.knows(keys) else None
            return catalog.recognise(keys, self.file.container, self.facts)

        if found := recognise(self.file.entries):
            return found, ""
        inner = {}
        for prefix in dict.fromkeys(f"{unwrapped(key).partition('.')[0]}." for key in self.file.entries):
            if found := recognise(list(self._below(prefix))):
                inner[prefix] = found
        if len(inner) == 1:
            ((prefix, found),) = inner.items()
            return found, prefix
        if inner:
            raise ValueError(
                f"Expected the weights of one model. Received: several, whose keys start with {', '.join(inner)}. Save "
                "the state dict of one of them to a file."
            )
        if given is not None:
            return given, ""
        raise ValueError(
            "Its keys match no known source. Expected keys like "
            f"embedding/kernel or patch_embed.proj.weight. Received: {', '.join(list(self.file.entries)[:5])}"
        )

    def _below(self, prefix):
        """Returns {key without the prefix: key in the file} for the keys with a prefix."""
        if not prefix:
            return {key: key for key in self.file.entries}
        keys = {key: unwrapped(key) for key in self.file.entries}
        return {name.removeprefix(prefix): key for key, name in keys.items() if name.startswith(prefix)}

    def _unstacked(self, canonical):
        """Returns {canonical key: Place}, with a key per block if the file stacks them."""
        places = {}
        for name, key in canonical.items():
            if self.source.stacked and name.startswith(self.source.stacked[0]):
                prefix, template = self.source.stacked
                count = next(iter(self.file.entries[key].shape), 0)
                if count > _MOST_BLOCKS:
                    raise refuse(self.path, f"{key!r} stacks {count:,} blocks, more than {_MOST_BLOCKS:,}")
                for i in range(count):
                    places[template.format(i) + name.removeprefix(prefix)] = Place(key, i)
            elif name == "embeddings.register_tokens" and 0 in self.file.entries[key].shape:
                # DINOv3 without registers.
                self.ignored.append(key)
            else:
                places[name] = Place(key)
        return places

    def _shape(self, place):
        shape = tuple(self.file.entries[place.key].shape)
        return shape if place.index is None else shape[1:]

    def _weights(self):
        found = {}
        for key in self.shapes:
            weight = self.source.weight_of(key)
            name = weight and self.source.find(weight)
            if name and all(key in self.shapes for key in name.keys):
                # Arrays of the wrong rank are left out here and reported when matched with a model.
                with contextlib.suppress(IndexError, ValueError):
                    found[weight] = name.codec.model_shape(tuple(self.shapes[key] for key in name.keys))
        return found

    def _positions(self, grid_size):
        """Returns (number of prefix positions, grid of the others): given, stated by the file, square, or else None."""
        table = self.weights.get("position_embedding/embeddings", ())
        if len(table) != 3:
            return 0, None
        tokens, registers = (
            sum(self.weights[name][1] for name in group if len(self.weights.get(name, ())) == 3)
            for group in (PREFIX_TOKENS, REGISTERS)
        )
        order = (tokens, tokens + registers, 0) if self.source.class_token_position else (0, tokens)
        patches = {prefix: table[1] - prefix for prefix in dict.fromkeys(order)}
        said, where = grid_size, "argument `grid_size`"
        if said is None:
            said, where = self.own.get("grid"), "the grid stated in the file"
        if said is None:
            said = self._grid_of_image(patches.values())
        self.says_grid = said is not None
        if said is None:
            for prefix, count in patches.items():
                side = math.isqrt(max(count, 0))
                if side and side * side == count:
                    return prefix, (side, side)
            return order[0], None
        two = isinstance(said, (tuple, list)) and len(said) == 2
        if two and all(isinstance(n, numbers.Integral) and n > 0 for n in said):
            for prefix, count in patches.items():
                if said[0] * said[1] == count:
                    return prefix, (int(said[0]), int(said[1]))
        raise ValueError(
            f"Expected {where} to be the (rows, columns) of the {patches[order[0]]} position embeddings of patches in "
            f"{self.path!r}. Received: {said!r}"
        )

    def _grid_of_image(self, counts):
        """Returns the grid for the image size in the file's config if it matches the table's length, else None."""
        patch = self.weights.get("patch_embedding/kernel", (0, 0))[:2]
        if self.image_size is None or 0 in patch:
            return None
        stages = fields.stages(self.weights)
        stride = 1 if stages is None else total_stride(stages)
        grid = tuple(-(-side // stride) // size for side, size in zip(self.image_size, patch, strict=True))
        return grid if grid[0] * grid[1] in counts else None

    def _position_interpolation(self):
        record = self.own.get("config", {})
        if self.source.name in ("dinov2", "dinov2_original") and "registers/tokens" in self.weights:
            # Its code antialiases only with registers.
            return "bicubic_antialias"
        own = self.source.family is not None or record.get("image_size") == [None, None]
        said = record.get("position_interpolation") if own else None
        return said or self.source.position_interpolation

    def positions_for(self, grid, num_prefix_positions):
        """Returns the file's (number of prefix positions, grid of the others), given those of the model."""
        # 16 positions are read as 4 x 4 even if the model's grid is 2 x 8, say. Only Keras' own files are read with the
        # model's grid, since they come from such models and do not state their grid.
        count = self.weights["position_embedding/embeddings"][1]
        same = grid and grid[0] * grid[1] == count - num_prefix_positions
        if same and self.source.name == "keras" and not self.says_grid:
            return num_prefix_positions, grid
        if self.grid_size is not None:
            return self.num_prefix_positions, self.grid_size
        fits = grid and grid[0] * grid[1] == count - self.num_prefix_positions
        return self.num_prefix_positions, grid if fits else None

    def read(self, keys):
        """Yields (canonical key, array) for the given canonical keys, grouped by array of the file."""
        by_place = {}
        for key in dict.fromkeys(keys):
            by_place.setdefault(self.places[key].key, []).append(key)
        for place, array in self.file.read(by_place):
            for key in by_place[place]:
                index = self.places[key].index
                yield key, array if index is None else array[index]


def describe(checkpoint):
    """Describes a checkpoint: path, source, sizes, settings, preprocessing and arrays, one per line."""
    count = sum(math.prod(shape) for shape in checkpoint.shapes.values())
    unknown = [key for key in checkpoint.shapes if checkpoint.source.weight_of(key) is None]
    rows = {
        "file": checkpoint.path,
        "source": checkpoint.source.name,
        "model": describe_sizes(checkpoint.sizes),
        "holds": f"{len(checkpoint.shapes)} arrays, {count:,} parameters",
        **checkpoint.settings,
        **checkpoint.preprocessing,
        "positions": f"{checkpoint.num_prefix_positions} of prefix tokens",
        "unknown keys": ", ".join(unknown) or "none",
        "to pass": ", ".join(checkpoint.stated.unknown) or "nothing",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:{width}}  {'unknown' if value is None else value}" for name, value in rows.items())
