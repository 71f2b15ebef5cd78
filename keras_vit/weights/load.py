"""Loads a checkpoint into a model. An existing model changes only if all shapes fit and all arrays can be read."""

import os
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.images.interpolation import POSITION_METHODS, TABLE_METHODS
from keras_vit.weights import resize
from keras_vit.weights.overwrite import free, overwrite
from keras_vit.weights.report import NO_WEIGHTS, LoadReport, WeightsMismatchError
from keras_vit.weights.tokens import PREFIX_TOKENS, REGISTERS, rows_of_tokens, weights_by_path

_POSITIONS = "position_embedding/embeddings"
# The largest side of resized patches and grids. Resizing needs memory proportional to the square of a side.
_LARGEST_SIDE = 1024


class Layout(NamedTuple):
    """The sizes of a checkpoint or a model that determine how arrays are split and resized.

    `grid` is the (rows, columns) of the patches in the position table, or None if it is unknown. The table begins with
    `num_prefix_positions` more positions, of the class token and similar tokens. `tables` maps each table of relative
    position biases to its grid. Error messages contain `description`, and the names of the `sizes` that differ between
    the file and the model.
    """

    num_heads: int | None
    head_dim: int | None
    num_classes: int
    grid: tuple | None
    num_prefix_positions: int
    position_interpolation: str
    tables: dict
    sizes: dict
    description: str


def _assign(variables, values):
    """Assigns a value to each variable. If an assignment fails, restores all variables."""
    before = {}
    try:
        for weight in list(values):
            before[weight] = ops.copy(ops.convert_to_tensor(variables[weight]))
            # `pop` frees each value before the next variable is copied.
            variables[weight].assign(values.pop(weight))
    except BaseException:
        for weight, value in before.items():
            variables[weight].assign(value)
        raise


class Plan:
    """Maps the file's arrays to the model's weights. Raises an error if an array or a weight has no counterpart.

    `there` is the `Layout` of the checkpoint, and `here` is the `Layout` of the model. `skip` are names of layers whose
    weights are not loaded. `position_interpolation` is the resizing method, or None for the checkpoint's method.
    """

    def __init__(self, model, checkpoint, there, here, skip=(), position_interpolation=None):
        self.model = model
        self.checkpoint = checkpoint
        self.there, self.here = there, here
        self.heads = here.num_heads, here.head_dim
        self.position_interpolation = position_interpolation or there.position_interpolation
        of_tables = checkpoint.source.position_interpolation in TABLE_METHODS
        methods = TABLE_METHODS if of_tables else POSITION_METHODS
        arguments.choice("position_interpolation", self.position_interpolation, methods)
        self.variables = weights_by_path(model)
        # The path of the model's first kernel. The number of image channels is an axis of this kernel.
        self.entrance = next(weight for weight in self.variables if weight.endswith("/kernel"))
        # The rows of the file's position table for the tokens before the patches. If the model's table has no row for
        # such a token, `values` adds the file's row to the token itself.
        self.prefix_rows = None
        self.report = LoadReport(checkpoint.path, checkpoint.source.name, model.name)
        self.report.skipped.update(dict.fromkeys(checkpoint.ignored, NO_WEIGHTS))
        self.report.skipped.update(dict.fromkeys(checkpoint.outside, f"is outside of {checkpoint.prefix!r}"))
        for name in checkpoint.facts.get("others") or ():
            self.report.skipped[name] = f"the file's {checkpoint.facts['wrapper']!r} is read"
        self.report.assumed.update(checkpoint.facts.get("assumed") or {})
        if not checkpoint.file.verified:
            why = "damage is not noticed without a SHA-256. Pass sha256=, or write a .sha256 file"
            self.report.unchecked[os.path.basename(checkpoint.path)] = why
        self.dropped = self._dropped_layers(skip)
        self.rows = {}
        self._match()

    def _dropped_layers(self, skip):
        """Returns {layer name: reason} for the layers whose weights are not loaded."""
        if isinstance(skip, str):
            skip = (skip,)
        here = {weight.split("/")[0] for weight in self.variables}
        there = {self.checkpoint.source.find_layer_name(name) for name in self.checkpoint.shapes} - {None}
        unknown = [name for name in skip if name not in here | there]
        if unknown:
            raise arguments.invalid("skip", f"layers with weights, out of {', '.join(sorted(here | there))}", unknown)
        dropped = dict.fromkeys(skip, "skipped as requested")
        classes_here, classes_there = self.here.num_classes, self.there.num_classes
        if classes_here != classes_there:
            for name in {"head", "head_dist"} & (here | there) - set(dropped):
                dropped[name] = f"{classes_there or 'no'} classes in the file, {classes_here or 'none'} in the model"
        if "head_dist" in here and len({"head", "head_dist"} & set(dropped)) == 1:
            expected = "both heads of a distilled model or none, because the model returns the mean of both heads"
            raise arguments.invalid("skip", expected, skip)
        if self.checkpoint.source.name == "siglip" and "head" in there - set(dropped):
            dropped.setdefault("pooling", "SigLIP's classifier does not use the attention pooling")
        if "head" in dropped and "pre_logits" in there - here:
            dropped.setdefault("pre_logits", "left out with the head, since the model has no pre_logits")
        return dropped

    def _match(self):
        missing, mismatched, used = [], {}, set()
        shapes, heads = self.checkpoint.shapes, self.heads
        for weight, variable in self.variables.items():
            layer = weight.split("/")[0]
            if layer in self.dropped:
                self.report.kept[weight] = "zero" if layer in ("head", "head_dist") else "unchanged"
                continue
            name = self.checkpoint.source.find(weight)
            used.update(name.keys if name else ())
            if name is None or any(key not in shapes for key in name.keys):
                missing.append(weight)
                continue
            self.rows[weight] = name
            shape, there = tuple(variable.shape), tuple(shapes[key] for key in name.keys)
            if not name.codec.fits(there, shape, heads) and not self._adapts(weight, shape):
                pairs = zip(name.keys, there, name.codec.file_shapes(shape, heads), strict=True)
                mismatched.update({key: (a, b) for key, a, b in pairs if a != b})
        unexpected = []
        for key in shapes:
            layer = self.checkpoint.source.find_layer_name(key)
            if layer in self.dropped:
                self.report.skipped[str(self.checkpoint.places[key])] = self.dropped[layer]
            elif key not in used:
                unexpected.append(str(self.checkpoint.places[key]))
        heads_there = self.there.num_heads
        if unexpected or missing or mismatched or heads_there not in (None, self.here.num_heads):
            raise WeightsMismatchError(
                self.checkpoint.path,
                self.model.name,
                self.there,
                self.here,
                unexpected,
                missing,
                mismatched,
                self._hints(unexpected, mismatched),
            )

    def _adapts(self, weight, needed):
        """Returns True if resizing the file's array or adapting its channels can give it the shape `needed`."""
        there = self.checkpoint.weights.get(weight, ())
        if len(there) != len(needed):
            return False
        if weight == self.entrance:
            # The kernel of a patch embedding can be resized. The first convolution of a hybrid's ResNet cannot.
            same_patch = there[:2] == needed[:2] or weight == "patch_embedding/kernel"
            return same_patch and there[3] == needed[3] and max(there[:2]) <= _LARGEST_SIDE
        if weight in self.here.tables:
            grid = self.there.tables.get(weight)
            return there[1] == needed[1] and grid is not None and max(grid) <= _LARGEST_SIDE
        if weight == _POSITIONS:
            same_rest = (there[0], there[2]) == (needed[0], needed[2])
            return same_rest and self.there.grid is not None and max(self.there.grid) <= _LARGEST_SIDE
        return False

    def _hints(self, unexpected, mismatched):
        if any(key.startswith("pre_logits/") for key in unexpected):
            yield "The file has a pre_logits layer: build the model with representation_size, or leave the head out."
        if any("/lora_" in key for key in unexpected):
            yield "The file has LoRA matrices: apply keras_vit.training.merge_lora to its model, and save the result."
        tokens = "class_token/tokens"
        if (tokens in self.checkpoint.weights) != (tokens in self.variables):
            yield 'Either the file or the model has no class token: pass skip=("class_token",) to leave it out.'
        name = self.checkpoint.source.find(_POSITIONS)
        if name and name.keys[0] in mismatched and self.there.grid is None:
            yield "The file does not contain the grid of its position embeddings: pass grid_size=(rows, columns)."

    def values(self):
        """Reads the file, and yields (weight path, new value) for each weight that changes. Assigns no value."""
        self.report.loaded.update({weight: tuple(self.variables[weight].shape) for weight in self.rows})
        # {key of the file: weights that still need the array of this key}.
        users = {}
        for weight, name in self.rows.items():
            for key in name.keys:
                users.setdefault(key, []).append(weight)
        arrays, tokens = {}, {}
        for key, array in self.checkpoint.read(list(users)):
            arrays[key] = array
            for weight in list(users[key]):
                keys = self.rows[weight].keys
                if not all(needed in arrays for needed in keys):
                    continue
                value = self._value(weight, arrays)
                for used in keys:
                    users[used].remove(weight)
                    if not users[used]:
                        del arrays[used]
                if weight in (*PREFIX_TOKENS, *REGISTERS):
                    # Keep these tokens, because position embeddings may be added to them after the whole file is read.
                    tokens[weight] = value
                else:
                    yield weight, value
        for weight, what in self.report.kept.items():
            if what == "zero":
                yield weight, np.zeros(self.variables[weight].shape, "float32")
        if self.prefix_rows is not None:
            self._add_prefix_positions(tokens)
        yield from tokens.items()

    def load(self, whole):
        """Loads the values, and returns the `LoadReport`.

        If `whole` is True, either all weights change or none. This takes twice the model's memory. Functions that build
        a new model set `whole` to False, so that each array is freed once it is loaded. If an array is damaged in
        this case, an error is raised, and the new model is unusable.
        """
        if whole:
            _assign(self.variables, dict(self.values()))
            return self.report
        # Do not free heads, because their arrays may belong to the user's initializer. Do not free the model's position
        # embeddings, because `_adapt_positions` may read them.
        kept = ("head", "head_dist", "position_embedding")
        free(self.variables[weight] for weight in self.rows if weight.split("/")[0] not in kept)
        for weight, value in self.values():
            overwrite(self.variables[weight], value)
        return self.report

    def _value(self, weight, arrays):
        """Returns the value of a weight, converted from the file's `arrays`, {key: array}."""
        name, shape = self.rows[weight], tuple(self.variables[weight].shape)
        adapt = {self.entrance: self._adapt_entrance, _POSITIONS: self._adapt_positions}.get(weight)
        adapt = self._adapt_table if weight in self.here.tables else adapt
        there = shape if adapt is None else self.checkpoint.weights.get(weight, shape)
        value = name.codec.to_model([arrays[key] for key in name.keys], there)
        return value if adapt is None else adapt(weight, value, shape)

    def _adapt_entrance(self, weight, kernel, shape):
        old, new = kernel.shape[2], shape[2]
        if kernel.shape[:2] != shape[:2]:
            self.report.resized[weight] = f"patches of {_change(kernel.shape[:2], shape[:2])} (pseudo-inverse)"
            kernel = resize.resize_patches(kernel, shape[:2])
        if old != new:
            how = "summed" if new == 1 else f"tiled, times {old}/{new}"
            self.report.adapted[weight] = f"{old} -> {new} channels ({how})"
        return resize.adapt_channels(kernel, new)

    def _adapt_positions(self, weight, embeddings, shape):
        there, here = self.there.grid, self.here.grid
        if there is None or here is None:
            # The table can be resized only if both grids are known.
            return embeddings
        num_there, num_here = self.there.num_prefix_positions, self.here.num_prefix_positions
        prefix, patches = embeddings[:, :num_there], embeddings[0, num_there:]
        self.prefix_rows = prefix
        if num_here != num_there:
            self.report.adapted[weight] = f"{num_there} -> {num_here} positions of prefix tokens"
            if "class_token" in self.dropped:
                own = ops.convert_to_numpy(ops.cast(self.variables[weight], "float32"))
                prefix = own[:, :num_here]
            else:
                missing = np.zeros((1, max(num_here - num_there, 0), shape[-1]), "float32")
                prefix = np.concatenate([prefix[:, :num_here], missing], axis=1)
        if there != here:
            self.report.resized[weight] = f"{_change(there, here)} ({self.position_interpolation})"
            patches = resize.resize_positions(patches.reshape(*there, -1), *here, self.position_interpolation)
        return np.concatenate([prefix, patches.reshape(1, -1, shape[-1])], axis=1)

    def _adapt_table(self, weight, table, shape):
        there, here = self.there.tables.get(weight), self.here.tables[weight]
        if there in (None, here):
            return table
        self.report.resized[weight] = f"{_change(there, here)} ({self.position_interpolation})"
        old, new = ([2 * side - 1 for side in grid] for grid in (there, here))
        return resize.resize_positions(table.reshape(*old, -1), *new, self.position_interpolation).reshape(shape)

    def _add_prefix_positions(self, values):
        """Adds the file's position embeddings to prefix tokens for which the model's position table has no rows."""
        there = self.checkpoint.weights
        counts = {name: there[name][1] for name in (*PREFIX_TOKENS, *REGISTERS) if name in there}
        for weight, rows in rows_of_tokens(self.prefix_rows, counts, self.here.num_prefix_positions):
            if weight in values:
                values[weight] = values[weight] + rows


def _change(there, here):
    """Formats two sizes, such as "14 x 14 -> 24 x 24"."""
    return " -> ".join(f"{rows} x {columns}" for rows, columns in (there, here))
