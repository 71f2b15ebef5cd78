"""A checkpoint file with its source: shapes by the source's own names, and what the file tells beside its arrays."""

import functools
import math
import numbers
import os
from typing import NamedTuple

from keras_vit.weights import architecture, names
from keras_vit.weights.names.source import IMAGENET_PREPROCESSING, OFFICIAL_PREPROCESSING
from keras_vit.weights.preprocessing import of_huggingface, of_own, of_timm
from keras_vit.weights.read import check_sha256, open_checkpoint
from keras_vit.weights.stated import stated

# Other code's names of activations that Keras or this package has. Those of other slopes or forms are not among them.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
# What our own files say beside their arrays.
_OWN_TYPES = {"activation": str, "layer_norm_epsilon": float, "pooling": str, "preprocessing": dict, "config": dict}
# timm's names of its poolings.
_TIMM_POOLINGS = {"token": "token", "avg": "gap", "map": "map", "": "none"}


class Place(NamedTuple):
    """Where an array lies: under a key of the file, and there at an index of the first axis if blocks are stacked."""

    key: str
    index: int | None = None


class Checkpoint:
    """A file of weights, opened; no array has been read yet.

    Args:
        path: Path of the file or folder.
        source: Name of the source, or None to recognise it by the keys.
        grid: (rows, columns) of the position embeddings, or None to work it out.
        sha256: The file's SHA-256 in hexadecimal digits, or None.

    Attributes:
        shapes: Dict from the source's own keys to shapes.
        weights: Dict from the paths of a model's weights to their shapes, as far as the file's shapes tell.
        architecture: The Architecture.
        num_prefix_positions: How many of the position embeddings belong to prefix tokens.
        grid_size: (rows, columns) of the others; None if unknown.
        settings: Dict of the `activation`, `layer_norm_epsilon` and `pooling` to compute with; None if unknown.
        position_resize: How its source resizes position embeddings.
        preprocessing: Dict of the image preprocessing constants.
        own: Dict of what `save_weights` wrote beside the arrays; {} in files of others.
        config: Dict of the folder's config.json; {} where there is none.
        image_size: (height, width) that the file says its model is for; None where it says nothing.
    """

    def __init__(self, path, source=None, grid=None, sha256=None):
        self.file = open_checkpoint(path)
        if sha256 is not None:
            _check_digest(self.file.path, sha256)
        self.path = self.file.path
        self.facts = self.file.facts
        self.own = self._own_facts()
        self.config = self._config()
        self.source = self._source(source)
        try:
            canonical, self.ignored = self.source.canonical_keys(self.file.entries)
        except ValueError as error:
            raise ValueError(f"Cannot read weights from {self.path!r}: {error}") from None
        self.places = self._unstacked(canonical)
        self.shapes = {name: self._shape(place) for name, place in self.places.items()}
        self.weights = self._weights()
        self.image_size = self._image_size()
        # Whether the grid was said, by the caller or the file, or only worked out.
        self.says_grid = False
        self.num_prefix_positions, self.grid_size = self._positions(grid)
        # Whether the file itself says how it computes, beside what its keys show.
        self.says_settings = bool(self.config or self.own)
        self.settings = self._settings()
        self.says_preprocessing = True
        self.preprocessing = self._preprocessing()
        self.position_resize = self._own_resize() or self.source.position_resize
        if self.source.name == "dinov2" and "registers/tokens" in self.weights:
            # Its code antialiases where there are registers, and not where there are none.
            self.position_resize = "bicubic_antialias"
        self.architecture = architecture.of_shapes(self.weights, self._heads(), self.grid_size)

    @functools.cached_property
    def stated(self):
        """The `Stated`, the record of its model as far as the file and its source tell it."""
        return stated(self)

    def _own_resize(self):
        """How a model of any size that is saved here resizes its table itself."""
        config = self.own.get("config", {})
        return config.get("position_interpolation") if config.get("image_size") == [None, None] else None

    def _source(self, source):
        if source is not None:
            if source not in names.SOURCES:
                known = ", ".join(repr(name) for name in names.SOURCES)
                raise ValueError(
                    "Invalid value received for argument `source`. "
                    f"Expected one of {known}, or None. Received: {source!r}"
                )
            return names.SOURCES[source]
        found = names.recognise(self.file.entries, self.file.container, self.facts)
        if found is None:
            raise ValueError(
                f"Cannot read weights from {self.path!r}: its keys are those of no known source. Expected keys like "
                f"embedding/kernel or patch_embed.proj.weight. Received: {', '.join(list(self.file.entries)[:5])}"
            )
        return found

    def _unstacked(self, canonical):
        """{canonical key: Place}, with an own key for each block where the file stacks them."""
        places = {}
        for name, key in canonical.items():
            if self.source.stacked and name.startswith(self.source.stacked[0]):
                prefix, template = self.source.stacked
                for i in range(next(iter(self.file.entries[key].shape), 0)):
                    places[template.format(i) + name.removeprefix(prefix)] = Place(key, i)
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
                try:
                    shape = name.codec.model_shape(tuple(self.shapes[key] for key in name.keys))
                except (IndexError, ValueError):
                    # Another rank than the weight's: the match with a model says which.
                    continue
                if shape is not None:
                    found[weight] = shape
        return found

    def _positions(self, grid):
        """How many position embeddings belong to prefix tokens, and the grid of the others.

        The grid is as passed, as the file says, or a square; None if it is none of these. One of our own files says
        it, since the number of embeddings alone cannot.
        """
        table = self.weights.get("position_embedding/embeddings", ())
        if len(table) != 3:
            return 0, None
        tokens, registers = (
            sum(self.weights[name][1] for name in names if len(self.weights.get(name, ())) == 3)
            for names in (architecture.PREFIX_TOKENS, architecture.REGISTERS)
        )
        order = (tokens, tokens + registers, 0) if self.source.class_token_position else (0, tokens)
        candidates = dict.fromkeys(order)
        said, where = (self.own.get("grid"), "what the file says") if grid is None else (grid, "argument `grid`")
        if grid is None and said is None:
            said = self._grid_of_image(table[1], candidates)
        self.says_grid = said is not None
        if said is None:
            for prefix in candidates:
                if architecture.square_grid(table[1] - prefix):
                    return prefix, architecture.square_grid(table[1] - prefix)
            return next(iter(candidates)), None
        two = isinstance(said, (tuple, list)) and len(said) == 2
        if two and all(isinstance(n, numbers.Integral) and n > 0 for n in said):
            for prefix in candidates:
                if said[0] * said[1] == table[1] - prefix:
                    return prefix, (int(said[0]), int(said[1]))
        raise ValueError(
            f"Expected {where} to be the (rows, columns) of the {table[1] - next(iter(candidates))} position "
            f"embeddings of patches in {self.path!r}. Received: {said!r}"
        )

    def _grid_of_image(self, count, candidates):
        """The grid of the image size that the file's config says, if so many patches are in the table."""
        patch = self.weights.get("patch_embedding/kernel", (0, 0))[:2]
        if self.image_size is None or 0 in patch or "root_conv/kernel" in self.weights:
            return None
        grid = tuple(side // size for side, size in zip(self.image_size, patch, strict=True))
        return grid if any(grid[0] * grid[1] == count - prefix for prefix in candidates) else None

    def _own_facts(self):
        """What save_weights wrote into a file of this package's, {} in others."""
        facts = self.facts.get("keras_vit")
        if not isinstance(facts, dict):
            return {}
        for name, value in facts.items():
            if name in _OWN_TYPES and not isinstance(value, _OWN_TYPES[name]):
                raise ValueError(f"Cannot read weights from {self.path!r}: it says {name}={value!r}, which cannot be.")
        return facts

    def positions_for(self, grid, num_prefix_positions):
        """How many embeddings belong to prefix tokens, and the grid of the others, for a model with such a table.

        A square number of embeddings is a square grid, also where it would fit the model's own as it is: 2 x 8 for
        4 x 4. Only Keras' own files, which come from models such as this one and say nothing, are taken to be the
        model's.
        """
        same = grid and self.weights["position_embedding/embeddings"][1] == grid[0] * grid[1] + num_prefix_positions
        if same and not self.says_grid and self.source.name == "keras":
            return num_prefix_positions, grid
        if self.grid_size is not None:
            return self.num_prefix_positions, self.grid_size
        count = self.weights["position_embedding/embeddings"][1] - self.num_prefix_positions
        return self.num_prefix_positions, grid if grid and grid[0] * grid[1] == count else None

    def _heads(self):
        """(num_heads, head_dim), from shapes that show them or from what the file says, else (None, None)."""
        qkv = self.weights.get("block_00/attention/qkv/kernel")
        if qkv is None or len(qkv) != 2:
            return None, None
        key = self.source.find("block_00/attention/qkv/kernel").keys[0]
        width = qkv[1] // 3
        if len(self.shapes[key]) == 3:
            return self.shapes[key][1:]
        norm = self.weights.get("block_00/attention/query_norm/gamma")
        if norm is not None and len(norm) == 1 and width % norm[0] == 0:
            return width // norm[0], norm[0]
        number = self.config.get("num_attention_heads", self.own.get("num_heads"))
        number = self._model_args().get("num_heads", number)
        if isinstance(number, int) and number > 0 and width % number == 0:
            return number, width // number
        return None, None

    def _config(self):
        config = self.facts.get("config")
        if not isinstance(config, dict):
            return {}
        # Of a model of images and text, the part for images.
        inner = config.get("vision_config")
        return {**config, **inner} if isinstance(inner, dict) else config

    def _settings(self):
        settings = {"activation": self.source.activation, "layer_norm_epsilon": self.source.layer_norm_epsilon}
        settings["pooling"] = self._pooling()
        config = {**self.config, **self._model_args()}
        for key in ("hidden_act", "act_layer"):
            if key in config:
                settings["activation"] = self._known(key, config[key], ACTIVATIONS)
        if isinstance(config.get("layer_norm_eps"), (int, float)):
            settings["layer_norm_epsilon"] = float(config["layer_norm_eps"])
        if "pre_logits/kernel" in self.weights:
            self._known("pooler_act", config.get("pooler_act", "tanh"), {"tanh": "tanh"})
        return {name: self.own.get(name, value) for name, value in settings.items()}

    def _known(self, key, value, table):
        if not isinstance(value, str) or value not in table:
            raise ValueError(
                f"Cannot load {self.path!r}: its config says {key}={value!r}, which no model here has. "
                f"Expected one of {', '.join(map(repr, table))}."
            )
        return table[value]

    def _model_args(self):
        """The arguments of timm's builder that a folder of timm's was made with, where they are other than usual."""
        found = self.config.get("model_args") if self.file.container == "timm" else None
        return found if isinstance(found, dict) else {}

    def _pooling(self):
        """How the source's code pools tokens; None where neither keys nor config tell."""
        if self.file.container == "timm" and "global_pool" in self.config:
            return self._known("global_pool", self.config["global_pool"], _TIMM_POOLINGS)
        if self.source.name == "siglip" and "head/kernel" in self.weights:
            # Its classifier takes the mean of the tokens, and no attention pooling, though that is in the file too.
            return "gap"
        if "pooling/probe" in self.weights:
            return "map"
        if "class_token/tokens" not in self.weights:
            return "gap"
        return None if self.source.name in ("timm", "deit", "keras") else "token"

    def _preprocessing(self):
        own = self.own.get("preprocessing")
        if own is not None:
            # Files of version 0.1 lack some fields.
            return OFFICIAL_PREPROCESSING | of_own(own)
        if self.file.container == "timm":
            return of_timm(self.facts.get("timm") or {})
        if self.file.container == "huggingface":
            self.says_preprocessing = isinstance(self.facts.get("preprocessor"), dict)
            return of_huggingface(self.path, self.facts.get("preprocessor"), self.config)
        if self.source.name == "deit" and "block_00/layer_scale_1/gamma" in self.weights:
            # DeiT III is evaluated on the whole of the shorter side.
            return {**IMAGENET_PREPROCESSING, "crop_fraction": 1.0, "resize_mode": "crop"}
        imagenet = ("distillation_token/tokens", "registers/tokens", "block_00/layer_scale_1/gamma")
        if self.source.name == "timm" and any(weight in self.weights for weight in imagenet):
            # DeiT, DeiT III and DINOv2, which a bare state dict names by nothing else.
            self.says_preprocessing = False
            return IMAGENET_PREPROCESSING
        self.says_preprocessing = self.source.name not in ("timm", "deit", "keras", "dinov2", "siglip", "huggingface")
        return self.source.preprocessing

    def _image_size(self):
        said = self.own.get("image_size") or self.config.get("image_size")
        if self.file.container == "timm":
            said = ((self.facts.get("timm") or {}).get("input_size") or (None,))[1:]
        if isinstance(said, int):
            said = (said, said)
        known = isinstance(said, (tuple, list)) and len(said) == 2
        return tuple(said) if known and all(isinstance(side, int) and side > 0 for side in said) else None

    def read(self, wanted):
        """Yields (canonical key, array) for each wanted canonical key; each array is the caller's."""
        by_key = {}
        for name in wanted:
            by_key.setdefault(self.places[name].key, []).append(name)
        for key, array in self.file.read(by_key):
            for name in by_key[key]:
                index = self.places[name].index
                yield name, array if index is None else array[index]


def _check_digest(path, expected):
    if not isinstance(expected, str) or len(expected) != 64 or set(expected.lower()) - set("0123456789abcdef"):
        raise ValueError(
            f"Invalid value received for argument `sha256`. Expected 64 hexadecimal digits. Received: {expected!r}"
        )
    if os.path.isdir(path):
        raise ValueError(
            "Invalid value received for argument `sha256`. Expected None with a folder, whose files each have their "
            f"own: lay <file>.sha256 beside them. Received: {expected!r} for {path!r}"
        )
    check_sha256(path, expected)


def describe(checkpoint):
    """Says in a few lines of text what a checkpoint is and holds.

    Args:
        checkpoint: A Checkpoint.

    Returns:
        A string: path, source, architecture, settings, preprocessing and weights.
    """
    count = sum(math.prod(shape) for shape in checkpoint.shapes.values())
    unknown = [key for key in checkpoint.shapes if checkpoint.source.weight_of(key) is None]
    rows = {
        "file": checkpoint.path,
        "source": checkpoint.source.name,
        "model": checkpoint.architecture,
        "holds": f"{len(checkpoint.shapes)} arrays, {count:,} parameters",
        **checkpoint.settings,
        **checkpoint.preprocessing,
        "positions": f"{checkpoint.num_prefix_positions} of prefix tokens",
        "unknown keys": ", ".join(unknown) or "none",
        "to be passed": ", ".join(checkpoint.stated.unknown) or "nothing",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:{width}}  {'not told' if value is None else value}" for name, value in rows.items())
