"""Loads a checkpoint into a model: plans on shapes, reads and converts, and only then touches the model."""

import json
import numbers
import os
from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.weights import architecture, names, resize
from keras_vit.weights.read import NpzFile
from keras_vit.weights.report import LoadReport, WeightsMismatchError

GRID_COMMENT = "keras_vit position grid"


class FileInfo(NamedTuple):
    """What a builder wants to know of a file before it builds: the sizes of the source's defaults."""

    activation: str
    grid_size: tuple | None


def inspect_file(path):
    """Reads which activation a file's source uses and which grid its position embeddings have, from shapes alone."""
    checkpoint = _Checkpoint(path, None, None)
    return FileInfo(checkpoint.source.activation, checkpoint.grid_size)


def load_weights(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    source: str | None = None,
    skip: str | Sequence[str] = (),
    allow: str | Sequence[str] = (),
    grid: tuple[int, int] | None = None,
) -> LoadReport:
    """Loads an official .npz checkpoint into a ViT, strictly.

    Every weight of the file and of the model is accounted for, or nothing is loaded. What differs by intention is
    adapted: position embeddings are resized to the model's grid (linearly with end points aligned, the official code's
    convention), and the patch-embedding kernel to its channels (summed for 1, tiled and rescaled for N). The head is
    left out, and the model's set to zero, where the numbers of classes differ; with it goes a pre_logits layer that the
    model does not have.

    Args:
        model: A ViT of this package's builders.
        path: Path of the file. Keys may have the published names, newer Flax names, or the prefix "opt/target/".
        source: "official", or None to recognise the source by the file's keys.
        skip: Names of layers to leave out on both sides, as in `skip=("head",)`. A skipped head becomes zero; any other
            skipped layer keeps the model's weights.
        allow: Differences to permit that change what the weights compute: "activation" and "layer_norm_epsilon".
        grid: (rows, columns) of the file's position embeddings, where their number is no square or not that of a square
            image.

    Returns:
        A LoadReport, which prints what was loaded, resized, adapted and skipped.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, of no known source, holds NaN, or was trained with another activation or
            epsilon; and as `WeightsMismatchError`, with both lists, if it does not fit. The model is as it was in each
            case.

    Example:

    >>> model = keras_vit.ViTB16(image_size=384, num_classes=17)
    >>> print(keras_vit.load_weights(model, "ViT-B_16.npz"))  # doctest: +SKIP

    Reference: arXiv 2010.11929, section 3.2; the official code's `load_pretrained`.
    """
    checkpoint = _Checkpoint(path, source, grid)
    plan = _Plan(model, checkpoint, skip)
    for name, here, there in architecture.differences(model, checkpoint.source, allow):
        raise ValueError(
            f"{checkpoint.path!r} was trained with {name}={there!r}, and model {model.name!r} was built with "
            f"{name}={here!r}. Nothing was loaded. Build the model with {name}={there!r}, or call "
            f"load_weights with allow=({name!r},) to load it all the same."
        )
    values = plan.read()
    for weight, value in values.items():
        plan.variables[weight].assign(value)
    return plan.report


class _Checkpoint:
    """A file with its source: its shapes by the source's own names, its architecture."""

    def __init__(self, path, source, grid):
        self.file = NpzFile(path)
        self.path = self.file.path
        self.source = self._source(source)
        self.keys, self.ignored = self.source.canonical_keys(self.file.entries)
        self.shapes = {name: self.file.entries[key].shape for name, key in self.keys.items()}
        self.grid_size = self._grid(grid)
        self.architecture = architecture.of_shapes(self.shapes, self.source, self.grid_size)

    def _source(self, source):
        if source is not None:
            if source not in names.SOURCES:
                known = ", ".join(repr(name) for name in names.SOURCES)
                raise ValueError(
                    "Invalid value received for argument `source`. "
                    f"Expected one of {known}, or None. Received: {source!r}"
                )
            return names.SOURCES[source]
        found = names.recognise(self.file.entries)
        if found is None:
            raise ValueError(
                f"Cannot read weights from {self.path!r}: its keys are those of no known source. Expected an official "
                f"ViT checkpoint, with keys like embedding/kernel. Received: {', '.join(list(self.file.entries)[:5])}"
            )
        return found

    def _grid(self, grid):
        """The grid of the file's position embeddings: as passed, as the file says, or a square; None if unknown.

        One of our own files says it in the archive's comment, since the number of embeddings alone cannot.
        """
        count = architecture.num_patch_positions(self.shapes, self.source)
        said, where = (self._commented_grid(), "the file's own comment") if grid is None else (grid, "argument `grid`")
        if said is None:
            return architecture.square_grid(count)
        two = isinstance(said, (tuple, list)) and len(said) == 2
        if not (two and all(isinstance(n, numbers.Integral) and n > 0 for n in said) and said[0] * said[1] == count):
            raise ValueError(
                f"Expected {where} to be the (rows, columns) of the {count} position embeddings of patches in "
                f"{self.path!r}. Received: {said!r}"
            )
        return int(said[0]), int(said[1])

    def _commented_grid(self):
        try:
            comment = json.loads(self.file.comment)
        except (ValueError, RecursionError):
            return None
        return comment.get(GRID_COMMENT) if isinstance(comment, dict) else None

    def read(self, wanted):
        """Yields (canonical key, array) for each wanted canonical key."""
        own = {self.keys[name]: name for name in wanted}
        for key, array in self.file.read(own):
            yield own[key], array


class _Plan:
    """Which of the file's arrays become which of the model's weights. Raises unless all are accounted for."""

    def __init__(self, model, checkpoint, skip):
        self.model = model
        self.checkpoint = checkpoint
        self.architecture = architecture.of_model(model)
        self.variables = architecture.weights_of(model)
        self.report = LoadReport(checkpoint.path, checkpoint.source.name, model.name)
        self.report.skipped.update(dict.fromkeys(checkpoint.ignored, "holds no weights"))
        self.dropped = self._dropped_layers(skip)
        self.rows = {}
        self.zeroed = []
        self._match()

    def _dropped_layers(self, skip):
        """Returns {layer name: reason} for the layers that are left out on both sides."""
        if isinstance(skip, str):
            skip = (skip,)
        here = {weight.split("/")[0] for weight in self.variables}
        there = {self.checkpoint.source.layer_of(name) for name in self.checkpoint.shapes} - {None}
        unknown = [name for name in skip if name not in here | there]
        if unknown:
            raise ValueError(
                "Invalid value received for argument `skip`. "
                f"Expected names of layers with weights, as {', '.join(sorted(here | there))}. Received: {unknown}"
            )
        dropped = dict.fromkeys(skip, "skipped as asked")
        classes_here, classes_there = self.architecture.num_classes, self.checkpoint.architecture.num_classes
        if "head" in there and "head" not in dropped and classes_here != classes_there:
            dropped["head"] = f"{classes_there} classes in the file, {classes_here or 'no head'} in the model"
        if "head" in dropped and "pre_logits" in there - here:
            dropped.setdefault("pre_logits", "goes with the head, since the model has no pre_logits")
        return dropped

    def _match(self):
        missing, mismatched, used = [], {}, set()
        for weight, variable in self.variables.items():
            layer = weight.split("/")[0]
            if layer in self.dropped:
                self._keep(weight, layer)
                continue
            name = self.checkpoint.source.find(weight)
            if name is None or any(key not in self.checkpoint.shapes for key in name.keys):
                missing.append(weight)
                used.update(name.keys if name else ())
                continue
            used.update(name.keys)
            shape = tuple(variable.shape)
            for key, needed in zip(name.keys, name.codec.shapes(shape, self.architecture), strict=True):
                there = self.checkpoint.shapes[key]
                if there != needed and not self._adapts(weight, there, needed):
                    mismatched[key] = (there, needed)
            self.rows[weight] = name
        unexpected = []
        for key in self.checkpoint.shapes:
            layer = self.checkpoint.source.layer_of(key)
            if layer in self.dropped:
                self.report.skipped[self.checkpoint.keys[key]] = self.dropped[layer]
            elif key not in used:
                unexpected.append(self.checkpoint.keys[key])
        if unexpected or missing or mismatched:
            raise WeightsMismatchError(
                self.checkpoint.path,
                self.model.name,
                self.checkpoint.architecture,
                self.architecture,
                unexpected,
                missing,
                mismatched,
                self._hints(unexpected, mismatched),
            )

    def _keep(self, weight, layer):
        if layer == "head":
            self.zeroed.append(weight)
        self.report.kept[weight] = "zero" if layer == "head" else "as it was"

    def _adapts(self, weight, there, needed):
        """Whether the array of a file, though of another shape, can become the weight."""
        if weight == "patch_embedding/kernel":
            return len(there) == 4 and there[:2] + there[3:] == needed[:2] + needed[3:]
        if weight == "position_embedding/embeddings":
            same_width = len(there) == 3 and (there[0], there[2]) == (needed[0], needed[2])
            return same_width and self._grid_there() is not None and self._prefix_fits()
        return False

    def _prefix_here(self):
        return self.model.get_layer("position_embedding").num_prefix_positions

    def _prefix_there(self):
        return architecture.num_prefix_positions(self.checkpoint.shapes, self.checkpoint.source)

    def _prefix_fits(self):
        # With the class token skipped its row of the table goes with it, whichever side has one.
        return self._prefix_here() == self._prefix_there() or "class_token" in self.dropped

    def _grid_there(self):
        """The grid of the file's position embeddings, or None if it cannot be told."""
        if self.checkpoint.grid_size is not None:
            return self.checkpoint.grid_size
        here = self.architecture.grid_size
        count = architecture.num_patch_positions(self.checkpoint.shapes, self.checkpoint.source)
        return here if here[0] * here[1] == count else None

    def _hints(self, unexpected, mismatched):
        if any(key.startswith("pre_logits/") for key in unexpected):
            yield "The file has a pre_logits layer: build the model with representation_size, or leave the head out."
        if self._prefix_there() != ("class_token/tokens" in self.variables):
            yield 'Only one of the two has a class token: pass skip=("class_token",) to load_weights to leave it out.'
        position = self.checkpoint.source.find("position_embedding/embeddings").keys[0]
        if position in mismatched and self._grid_there() is None:
            yield "The file does not tell the grid of its position embeddings: pass grid=(rows, columns)."

    def read(self):
        """Returns {weight: array} for all weights that change. The model is not touched."""
        values = {weight: np.zeros(tuple(self.variables[weight].shape), "float32") for weight in self.zeroed}
        wanted = {key: weight for weight, name in self.rows.items() for key in name.keys}
        parts = {}
        for key, array in self.checkpoint.read(wanted):
            weight = wanted[key]
            parts.setdefault(weight, {})[key] = array
            if len(parts[weight]) == len(self.rows[weight].keys):
                values[weight] = self._convert(weight, parts.pop(weight))
        return values

    def _convert(self, weight, parts):
        name, shape = self.rows[weight], tuple(self.variables[weight].shape)
        arrays = [parts[key] for key in name.keys]
        self.report.loaded[weight] = shape
        if weight == "patch_embedding/kernel" and arrays[0].shape != shape:
            old, new = arrays[0].shape[2], shape[2]
            how = "summed" if new == 1 else f"tiled, times {old}/{new}"
            self.report.adapted[weight] = f"{old} -> {new} channels ({how})"
            return resize.adapt_channels(arrays[0], new)
        if weight == "position_embedding/embeddings":
            return self._convert_positions(weight, arrays[0])
        return name.codec.to_model(arrays, shape)

    def _convert_positions(self, weight, embeddings):
        prefix_there, grid_there = self._prefix_there(), self._grid_there()
        prefix_here, grid_here = self._prefix_here(), self.architecture.grid_size
        prefix, patches = embeddings[:, :prefix_there], embeddings[0, prefix_there:]
        if prefix_here != prefix_there:
            self.report.adapted[weight] = f"{prefix_there} -> {prefix_here} positions of prefix tokens"
            prefix = np.asarray(self.variables[weight].numpy(), "float32")[:, :prefix_here]
        if grid_there != grid_here:
            sizes = " -> ".join(f"{rows} x {columns}" for rows, columns in (grid_there, grid_here))
            self.report.resized[weight] = f"{sizes} (linear, end points aligned)"
            patches = resize.resize_linear(patches.reshape(*grid_there, -1), *grid_here)
        return np.concatenate([prefix, patches.reshape(1, -1, patches.shape[-1])], axis=1)
