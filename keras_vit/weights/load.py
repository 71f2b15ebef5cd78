"""Loads a checkpoint into a model: plans by shapes, reads and converts, and only then changes the model."""

import os
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.config import config_of
from keras_vit.images.interpolation import POSITION_METHODS, TABLE_METHODS
from keras_vit.weights import resize
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.model import (
    PREFIX_TOKENS,
    REGISTERS,
    differing_settings,
    heads_of,
    rows_of_tokens,
    sizes_of,
    weights_of,
)
from keras_vit.weights.names.source import ENTRANCES
from keras_vit.weights.overwrite import free, overwrite
from keras_vit.weights.report import NO_WEIGHTS, LoadReport, WeightsMismatchError
from keras_vit.weights.timm_coatnet import TABLE, grid_of_table

_HOW = {
    "linear": "linear, end points aligned",
    "bicubic": "bicubic",
    "bicubic_antialias": "bicubic, antialiased",
    "bicubic_offset": "bicubic, by sizes with 0.1 added",
    "bilinear": "bilinear",
    "geometric": "linear, between offsets in a geometric progression",
}
_POSITIONS = "position_embedding/embeddings"
# Of the patches and grids that are resized, since the memory for that grows with its square.
_LARGEST_SIDE = 1024


def load_weights(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    source: str | None = None,
    skip: str | Sequence[str] = (),
    allow: str | Sequence[str] = (),
    grid_size: tuple[int, int] | None = None,
    position_interpolation: str | None = None,
    sha256: str | None = None,
) -> LoadReport:
    """Loads a checkpoint from any supported code base into a model of this package.

    Nothing is loaded unless every weight of the file and the model is accounted for. Position embeddings are resized as
    in the source's code, the patch-embedding kernel by FlexiViT's pseudo-inverse resize; its channels are summed for 1,
    or tiled and rescaled for N. Prefix tokens absorb position embeddings that the model's table has no rows for, and
    missing rows are zero. If the numbers of classes differ, the head is set to zero, and a pre_logits layer that only
    the file has is left out.

    Args:
        model: A model of a family of this package but VT-ResNet.
        path: Path of the file: an .npz of the official code, big_vision or BiT; a state dict of timm or DeiT as
            .safetensors or .pth (no code in it is run); a folder of timm or Hugging Face; Keras' .weights.h5; weights
            of EfficientNets of keras.applications (.h5); or a checkpoint of TensorFlow 1, by its folder or its .index,
            which needs TensorFlow. Or a hub's name, whose files are downloaded once:
            `hf://owner/name[@revision][/file or folder]` (a branch, tag or commit) or
            `kaggle://owner/model/framework/variation[/version][/file]`.
        source: "official", "big_vision", "bit", "timm", "timm_bit", "timm_coatnet", "timm_efficientnet", "deit",
            "huggingface" (its ViT and DeiT), "huggingface_bit", "dinov2", "siglip", "dinov3", "clip" (all Hugging
            Face's), "dino", "dinov2_original", "dinov3_original", "mae", "ijepa", "eva02", "openai_clip", "open_clip",
            "open_clip_timm", "efficientnet" (the official checkpoints), "keras_applications" or "keras". None:
            recognised by the file's keys.
        skip: Names of layers to leave out on both sides, such as ("head",). A skipped head is set to zero; other
            layers keep the model's weights.
        allow: Settings that may differ although they change the outputs: "activation", "layer_norm_epsilon", "pooling",
            "position_embedding", "rotary_embedding", "rotary_grid", "key_bias", "resnet_epsilons", "pool_padding",
            "padding", "batch_norm_epsilon".
        grid_size: (rows, columns) of the file's position embeddings, if neither square nor stated by the file.
        position_interpolation: "linear" (official code, big_vision), "bicubic" (DeiT, Hugging Face),
            "bicubic_antialias" (timm) or "bicubic_offset" (DINO); for the tables of CoAtNet "bilinear" (its paper) or
            "geometric" (timm). None: as in the source's code.
        sha256: The expected SHA-256, in hexadecimal digits. None: as in `<path>.sha256` or Hugging Face's cache.
            Without any, and without checksums in the format, files with a weight above 10,000 or below -10,000 are
            refused.

    Returns:
        A `LoadReport`, which prints what was loaded, resized, adapted and skipped.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, of no known source, holds NaN or was trained with other settings, or the
            model's preprocessing is folded. If it does not fit: `WeightsMismatchError`. The model stays unchanged.
        ImportError: If the file needs PyTorch, which is not installed.

    Example:

    >>> model = keras_vit.ViTB16(image_size=384, num_classes=17)
    >>> print(keras_vit.load_weights(model, "ViT-B_16.npz"))  # doctest: +SKIP

    Reference: arXiv 2010.11929, section 3.2; the official code's `load_pretrained`.
    """
    checkpoint = Checkpoint(path, source, grid_size, sha256)
    options = {"skip": skip, "allow": allow, "position_interpolation": position_interpolation}
    return load_checkpoint(model, checkpoint, whole=True, **options)


def load_checkpoint(model, checkpoint, *, skip=(), allow=(), position_interpolation=None, whole=False):
    """Loads an open Checkpoint; otherwise like `load_weights`.

    With `whole`, the model takes all weights or none, in twice its memory. Otherwise each array is freed once it is
    loaded, and a damaged one leaves a model that is not to be used: for builders, which raise the error.
    """
    if any(getattr(layer, "folded", False) for layer in model.layers):
        raise ValueError(
            f"Expected a model whose preprocessing is not folded into its weights. Received: model {model.name!r}. "
            "Load the weights into the model that fold_preprocessing was called on, and fold it again."
        )
    plan = _Plan(model, checkpoint, skip, position_interpolation)
    settings = dict(checkpoint.settings)
    if "head/kernel" not in plan.rows or "class_token" in plan.dropped:
        # The pooling may differ with a new head, or without the class token.
        settings["pooling"] = None
    if "position_embedding" in plan.dropped:
        settings["position_embedding"] = None
    for name, here, there in differing_settings(model, settings, allow):
        raise ValueError(
            f"{checkpoint.path!r} was trained with {name}={there!r}, and model {model.name!r} was built with "
            f"{name}={here!r}. Nothing was loaded. Build the model with {name}={there!r}, or call "
            f"load_weights with allow=({name!r},) to load it nevertheless."
        )
    if whole:
        _assign(plan.variables, dict(plan.values()))
    else:
        # Not the head, whose initializer may have returned the user's array, nor positions, which may be kept.
        kept = ("head", "head_dist", "position_embedding")
        free(plan.variables[weight] for weight in plan.rows if weight.split("/")[0] not in kept)
        for weight, value in plan.values():
            overwrite(plan.variables[weight], value)
    return plan.report


def _assign(variables, values):
    """Assigns each variable its value; if one fails, restores all."""
    before = {}
    try:
        for weight in list(values):
            before[weight] = ops.copy(ops.convert_to_tensor(variables[weight]))
            # Frees each value before the next variable is copied.
            variables[weight].assign(values.pop(weight))
    except BaseException:
        for weight, value in before.items():
            variables[weight].assign(value)
        raise


class _Plan:
    """Maps the file's arrays to the model's weights; raises unless all are accounted for."""

    def __init__(self, model, checkpoint, skip, position_interpolation):
        self.model = model
        self.checkpoint = checkpoint
        self.position_interpolation = position_interpolation or checkpoint.position_interpolation
        of_tables = checkpoint.source.position_interpolation in TABLE_METHODS
        methods = TABLE_METHODS if of_tables else POSITION_METHODS
        arguments.one_of("position_interpolation", self.position_interpolation, methods)
        self.sizes = sizes_of(model)
        self.variables = weights_of(model)
        # The kernel whose shape depends on the number of image channels.
        self.entrance = next(k for k in ENTRANCES if k in self.variables)
        layers = {layer.name: layer for layer in model.layers}
        # The number of positions of prefix tokens in model and file, and the file's grid of the others.
        self.prefix_here = getattr(layers.get("position_embedding"), "num_prefix_positions", 0)
        self.prefix_there, self.grid_there = 0, None
        # The file's rows for prefix tokens, kept until the tokens are read.
        self.prefix_rows = None
        if _POSITIONS in checkpoint.weights:
            self.prefix_there, self.grid_there = checkpoint.positions_for(self.sizes["grid_size"], self.prefix_here)
        self.report = LoadReport(checkpoint.path, checkpoint.source.name, model.name)
        self.report.skipped.update(dict.fromkeys(checkpoint.ignored, NO_WEIGHTS))
        self.report.skipped.update(dict.fromkeys(checkpoint.outside, f"is outside of {checkpoint.prefix!r}"))
        for name in checkpoint.facts.get("others") or ():
            self.report.skipped[name] = f"the file's {checkpoint.facts['wrapper']!r} is read"
        self.report.assumed.update(checkpoint.facts.get("assumed") or {})
        if not checkpoint.file.verified:
            why = "damage is not noticed without a SHA-256 (by sha256=, or in a .sha256 file)"
            self.report.unchecked[os.path.basename(checkpoint.path)] = why
        self.dropped = self._dropped_layers(skip)
        self.rows = {}
        self._match()

    def _dropped_layers(self, skip):
        """Returns {layer name: reason} for the layers left out on both sides."""
        if isinstance(skip, str):
            skip = (skip,)
        here = {weight.split("/")[0] for weight in self.variables}
        there = {self.checkpoint.source.layer_of(name) for name in self.checkpoint.shapes} - {None}
        unknown = [name for name in skip if name not in here | there]
        if unknown:
            raise arguments.invalid("skip", f"layers with weights, out of {', '.join(sorted(here | there))}", unknown)
        dropped = dict.fromkeys(skip, "skipped as requested")
        classes_here, classes_there = self.sizes["num_classes"], self.checkpoint.sizes["num_classes"]
        if classes_here != classes_there:
            for name in {"head", "head_dist"} & (here | there) - set(dropped):
                dropped[name] = f"{classes_there or 'no'} classes in the file, {classes_here or 'none'} in the model"
        if "head_dist" in here and len({"head", "head_dist"} & set(dropped)) == 1:
            expected = "both heads of a distilled model or none, since the mean with a zero head is half the logits"
            raise arguments.invalid("skip", expected, skip)
        if self.checkpoint.source.name == "siglip" and "head" in there - set(dropped):
            dropped.setdefault("pooling", "SigLIP's classifier does not use the attention pooling")
        if "head" in dropped and "pre_logits" in there - here:
            dropped.setdefault("pre_logits", "left out with the head, since the model has no pre_logits")
        return dropped

    def _match(self):
        missing, mismatched, used = [], {}, set()
        shapes, heads = self.checkpoint.shapes, heads_of(self.sizes)
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
            layer = self.checkpoint.source.layer_of(key)
            if layer in self.dropped:
                self.report.skipped[str(self.checkpoint.places[key])] = self.dropped[layer]
            elif key not in used:
                unexpected.append(str(self.checkpoint.places[key]))
        heads_there = self.checkpoint.sizes["num_heads"]
        if unexpected or missing or mismatched or heads_there not in (None, self.sizes["num_heads"]):
            raise WeightsMismatchError(
                self.checkpoint.path,
                self.model.name,
                self.checkpoint.sizes,
                self.sizes,
                unexpected,
                missing,
                mismatched,
                self._hints(unexpected, mismatched),
            )

    def _adapts(self, weight, needed):
        """Returns whether the file's array, of another shape, can be adapted to the weight."""
        there = self.checkpoint.weights.get(weight, ())
        if len(there) != len(needed):
            return False
        if weight == self.entrance:
            # Unlike a patch embedding, a hybrid's root convolution is not resized.
            same_patch = there[:2] == needed[:2] or weight == "patch_embedding/kernel"
            return same_patch and there[3] == needed[3] and max(there[:2]) <= _LARGEST_SIDE
        if weight.endswith(TABLE):
            grid = grid_of_table(self.checkpoint, weight)
            return there[1] == needed[1] and grid is not None and max(grid) <= _LARGEST_SIDE
        if weight == _POSITIONS:
            same_rest = (there[0], there[2]) == (needed[0], needed[2])
            return same_rest and self.grid_there is not None and max(self.grid_there) <= _LARGEST_SIDE
        return False

    def _hints(self, unexpected, mismatched):
        if any(key.startswith("pre_logits/") for key in unexpected):
            yield "The file has a pre_logits layer: build the model with representation_size, or leave the head out."
        tokens = "class_token/tokens"
        if (tokens in self.checkpoint.weights) != (tokens in self.variables):
            yield 'Either the file or the model has no class token: pass skip=("class_token",) to leave it out.'
        name = self.checkpoint.source.find(_POSITIONS)
        if name and name.keys[0] in mismatched and self.grid_there is None:
            yield "The file does not contain the grid of its position embeddings: pass grid_size=(rows, columns)."

    def values(self):
        """Yields (weight, array) for all weights that change, each once its arrays are read; changes no weight."""
        self.report.loaded.update({weight: tuple(self.variables[weight].shape) for weight in self.rows})
        # {key of the file: the weights that still need it}.
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
                    # What is added to them is known after the position embeddings.
                    tokens[weight] = value
                else:
                    yield weight, value
        for weight, what in self.report.kept.items():
            if what == "zero":
                yield weight, np.zeros(self.variables[weight].shape, "float32")
        if self.prefix_rows is not None:
            self._add_prefix_positions(tokens)
        yield from tokens.items()

    def _value(self, weight, arrays):
        """Returns the value of a weight, from arrays of the file by their keys."""
        name, shape = self.rows[weight], tuple(self.variables[weight].shape)
        adapt = {self.entrance: self._adapt_entrance, _POSITIONS: self._adapt_positions}.get(weight)
        adapt = self._adapt_table if weight.endswith(TABLE) else adapt
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
        there, here = self.grid_there, self.sizes["grid_size"]
        if there is None or here is None:
            # The table fits without a grid.
            return embeddings
        prefix, patches = embeddings[:, : self.prefix_there], embeddings[0, self.prefix_there :]
        self.prefix_rows = prefix
        if self.prefix_here != self.prefix_there:
            self.report.adapted[weight] = f"{self.prefix_there} -> {self.prefix_here} positions of prefix tokens"
            if "class_token" in self.dropped:
                own = ops.convert_to_numpy(ops.cast(self.variables[weight], "float32"))
                prefix = own[:, : self.prefix_here]
            else:
                missing = np.zeros((1, max(self.prefix_here - self.prefix_there, 0), shape[-1]), "float32")
                prefix = np.concatenate([prefix[:, : self.prefix_here], missing], axis=1)
        if there != here:
            self.report.resized[weight] = f"{_change(there, here)} ({_HOW[self.position_interpolation]})"
            patches = resize.resize_positions(patches.reshape(*there, -1), *here, self.position_interpolation)
        return np.concatenate([prefix, patches.reshape(1, -1, shape[-1])], axis=1)

    def _adapt_table(self, weight, table, shape):
        there = grid_of_table(self.checkpoint, weight)
        here = config_of(self.model).grid(int(weight.split("_")[1]))
        if there in (None, here):
            return table
        self.report.resized[weight] = f"{_change(there, here)} ({_HOW[self.position_interpolation]})"
        old, new = ([2 * side - 1 for side in grid] for grid in (there, here))
        return resize.resize_positions(table.reshape(*old, -1), *new, self.position_interpolation).reshape(shape)

    def _add_prefix_positions(self, values):
        """Adds to the prefix tokens the file's positions that the model's table has no rows for."""
        there = self.checkpoint.weights
        counts = {name: there[name][1] for name in (*PREFIX_TOKENS, *REGISTERS) if name in there}
        for weight, rows in rows_of_tokens(self.prefix_rows, counts, self.prefix_here):
            if weight in values:
                values[weight] = values[weight] + rows


def _change(there, here):
    """Formats two sizes, such as "14 x 14 -> 24 x 24"."""
    return " -> ".join(f"{rows} x {columns}" for rows, columns in (there, here))
