"""A checkpoint file with its source: shapes by the source's own names, and what the file tells beside its arrays."""

import math
import numbers
from typing import NamedTuple

from keras_vit.weights import architecture, names
from keras_vit.weights.names.source import IMAGENET_PREPROCESSING, OFFICIAL_PREPROCESSING
from keras_vit.weights.read import check_sha256, open_checkpoint

GRID_COMMENT = "keras_vit position grid"
# transformers' names of activations, where they are others than Keras'.
_HUGGINGFACE_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"}
# Pillow's numbers of its filters.
_RESAMPLE = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic", 4: "area"}


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
        settings: Dict of the `activation` and `layer_norm_epsilon` to compute with; None if unknown.
        preprocessing: Dict of the image preprocessing constants.
        image_size: (height, width) that the file says its model is for; None where it says nothing.
    """

    def __init__(self, path, source=None, grid=None, sha256=None):
        if sha256 is not None:
            check_sha256(path, sha256)
        self.file = open_checkpoint(path)
        self.path = self.file.path
        self.facts = self.file.facts
        self.source = self._source(source)
        try:
            canonical, self.ignored = self.source.canonical_keys(self.file.entries)
        except ValueError as error:
            raise ValueError(f"Cannot read weights from {self.path!r}: {error}") from None
        self.places = self._unstacked(canonical)
        self.shapes = {name: self._shape(place) for name, place in self.places.items()}
        self.weights = self._weights()
        self.num_prefix_positions, self.grid_size = self._positions(grid)
        self.settings = self._settings()
        self.preprocessing = self._preprocessing()
        self.image_size = self._image_size()
        self.architecture = architecture.of_shapes(self.weights, self._heads(), self.grid_size)

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
        tokens = sum(
            self.weights[name][1] for name in architecture.PREFIX_TOKENS if len(self.weights.get(name, ())) == 3
        )
        candidates = dict.fromkeys((tokens, 0) if self.source.class_token_position else (0, tokens))
        said, where = (self._said_grid(), "the file's own comment") if grid is None else (grid, "argument `grid`")
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

    def _said_grid(self):
        if self.file.container == "npz":
            return self.facts.get(GRID_COMMENT)
        return self._own_facts().get("grid")

    def _own_facts(self):
        """What save_weights wrote into a file of this package's, {} in others."""
        facts = self.facts.get("keras_vit")
        return facts if isinstance(facts, dict) else {}

    def positions_for(self, grid):
        """How many embeddings belong to prefix tokens, and the grid of the others, for a model with that grid."""
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
        number = self._config().get("num_attention_heads", self._own_facts().get("num_heads"))
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
        config = self._config()
        if isinstance(config.get("hidden_act"), str):
            settings["activation"] = _HUGGINGFACE_ACTIVATIONS.get(config["hidden_act"], config["hidden_act"])
        if isinstance(config.get("layer_norm_eps"), (int, float)):
            settings["layer_norm_epsilon"] = float(config["layer_norm_eps"])
        own = self._own_facts()
        return {name: own.get(name, value) for name, value in settings.items()}

    def _preprocessing(self):
        own = self._own_facts().get("preprocessing")
        if isinstance(own, dict):
            return own
        if self.file.container == "timm":
            return _of_timm(self.facts.get("timm") or {})
        if self.file.container == "huggingface":
            return _of_huggingface(self.facts.get("preprocessor"), self._config())
        if self.source.name == "deit" and "block_00/layer_scale_1/gamma" in self.weights:
            # DeiT III is evaluated on whole images.
            return {**IMAGENET_PREPROCESSING, "crop_fraction": 1.0}
        imagenet = ("distillation_token/tokens", "registers/tokens", "block_00/layer_scale_1/gamma")
        if self.source.name == "timm" and any(weight in self.weights for weight in imagenet):
            # DeiT, DeiT III and DINOv2, which a bare state dict names by nothing else.
            return IMAGENET_PREPROCESSING
        return self.source.preprocessing

    def _image_size(self):
        said = self._own_facts().get("image_size") or self._config().get("image_size")
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


def preprocessing_of(checkpoint, **given):
    """The image preprocessing constants of a model: as given, else those of its weights, else the official ones.

    Args:
        checkpoint: A Checkpoint, or None.
        **given: `mean`, `std`, `interpolation` and `crop_fraction`, None where not given.

    Returns:
        Dict of the four.
    """
    own = OFFICIAL_PREPROCESSING if checkpoint is None else checkpoint.preprocessing
    return {name: own[name] if value is None else value for name, value in given.items()}


def _of_timm(config):
    found = {
        "mean": config.get("mean"),
        "std": config.get("std"),
        "interpolation": config.get("interpolation"),
        "crop_fraction": config.get("crop_pct"),
    }
    return {name: OFFICIAL_PREPROCESSING[name] if value is None else value for name, value in found.items()}


def _of_huggingface(preprocessor, config):
    if not isinstance(preprocessor, dict):
        # What the published models of each kind come with.
        kind = str(config.get("model_type"))
        return IMAGENET_PREPROCESSING if kind.startswith(("deit", "dinov2")) else OFFICIAL_PREPROCESSING
    size, crop = (_side(preprocessor.get(key)) for key in ("size", "crop_size"))
    cropped = preprocessor.get("do_center_crop") and size and crop
    return {
        "mean": preprocessor.get("image_mean", OFFICIAL_PREPROCESSING["mean"]),
        "std": preprocessor.get("image_std", OFFICIAL_PREPROCESSING["std"]),
        "interpolation": _RESAMPLE.get(preprocessor.get("resample"), OFFICIAL_PREPROCESSING["interpolation"]),
        "crop_fraction": min(crop / size, 1.0) if cropped else 1.0,
    }


def _side(size):
    """The shorter side of a size as transformers writes it: a number, or a dict of sides."""
    if isinstance(size, dict):
        sides = [side for side in size.values() if isinstance(side, int) and side > 0]
        return min(sides, default=None)
    return size if isinstance(size, int) and size > 0 else None


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
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:{width}}  {'not told' if value is None else value}" for name, value in rows.items())
