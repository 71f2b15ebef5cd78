"""Loads a checkpoint into a model: plans on shapes, reads and converts, and only then touches the model."""

import os
from collections.abc import Sequence
from functools import partial

import keras
import numpy as np
from keras import ops

from keras_vit.weights import architecture, resize
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.report import NO_WEIGHTS, LoadReport, WeightsMismatchError

_HOW = {
    "linear": "linear, end points aligned",
    "bicubic": "bicubic",
    "bicubic_antialias": "bicubic, antialiased",
}


POSITIONS = "position_embedding/embeddings"


def load_weights(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    source: str | None = None,
    skip: str | Sequence[str] = (),
    allow: str | Sequence[str] = (),
    grid: tuple[int, int] | None = None,
    position_resize: str | None = None,
    sha256: str | None = None,
) -> LoadReport:
    """Loads a checkpoint of any of the known code bases into a model of this package, strictly.

    Every weight of the file and of the model is accounted for, or nothing is loaded. What differs by intention is
    adapted: position embeddings are resized to the model's grid as the source's own code does, the patch-embedding
    kernel to its patch size (FlexiViT's pseudo-inverse resize) and its channels (summed for 1, tiled and rescaled for
    N). A table of positions with rows for prefix tokens, loaded into a model without, has them added to the tokens, and
    one without gets rows of zeros: both compute the same as before. The head is left out, and the model's set to zero,
    where the numbers of classes differ; with it goes a pre_logits layer that the model does not have.

    Args:
        model: A ViT, hybrid or BiT of this package's builders.
        path: Path of the file: an .npz of the official code, big_vision or BiT; timm's or DeiT's state dict as
            .safetensors or .pth; a Hugging Face folder; or Keras' .weights.h5. A .pth is read by PyTorch, which must be
            installed, and by nothing that could run code in it.
        source: "official", "big_vision", "bit", "timm", "deit", "huggingface" (its ViT and DeiT), "dinov2", "siglip"
            (both Hugging Face's), "keras", or None to recognise the source
            by the file's keys.
        skip: Names of layers to leave out on both sides, as in `skip=("head",)`. A skipped head becomes zero; any other
            skipped layer keeps the model's weights.
        allow: Differences to permit that change what the weights compute: "activation", "layer_norm_epsilon" and
            "pooling".
        grid: (rows, columns) of the file's position embeddings, where their number is no square or not that of a square
            image.
        position_resize: How position embeddings are resized: "linear", "bicubic" or "bicubic_antialias" (see
            `weights.resize.resize_positions`). None takes the source's own way.
        sha256: The SHA-256 that the file must have, in hexadecimal digits. Of all formats only .npz and what
            `save_weights` writes notice by themselves that a bit of their data has flipped. Without it a file beside it
            of the same name and the ending .sha256, as `sha256sum` writes it, is followed.

    Returns:
        A LoadReport, which prints what was loaded, resized, adapted and skipped.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, of no known source, holds NaN, or was trained with another activation or
            epsilon, or the model's preprocessing is folded; and as `WeightsMismatchError`, with both lists, if it does
            not fit. The model is as it was in each case.
        ImportError: If the file needs PyTorch to be read and there is none.

    Example:

    >>> model = keras_vit.ViTB16(image_size=384, num_classes=17)
    >>> print(keras_vit.load_weights(model, "ViT-B_16.npz"))  # doctest: +SKIP

    Reference: arXiv 2010.11929, section 3.2; the official code's `load_pretrained`.
    """
    checkpoint = Checkpoint(path, source, grid, sha256)
    return load_checkpoint(model, checkpoint, skip=skip, allow=allow, position_resize=position_resize)


def load_checkpoint(model, checkpoint, *, skip=(), allow=(), position_resize=None):
    """Loads a Checkpoint that is open already; the rest is as in `load_weights`."""
    if any(getattr(layer, "folded", False) for layer in model.layers):
        raise ValueError(
            f"Expected a model whose preprocessing is not folded into its weights. Received: model {model.name!r}. "
            "Load the one that fold_preprocessing was called on, and fold that again."
        )
    plan = _Plan(model, checkpoint, skip, position_resize)
    settings = dict(checkpoint.settings)
    if "head/kernel" not in plan.rows or "class_token" in plan.dropped:
        # How tokens are pooled for a new head, or without the token that was pooled, is the model's own affair.
        settings["pooling"] = None
    for name, here, there in architecture.differences(model, settings, allow):
        raise ValueError(
            f"{checkpoint.path!r} was trained with {name}={there!r}, and model {model.name!r} was built with "
            f"{name}={here!r}. Nothing was loaded. Build the model with {name}={there!r}, or call "
            f"load_weights with allow=({name!r},) to load it all the same."
        )
    _assign(plan.variables, plan.read())
    return plan.report


def _assign(variables, values):
    """Gives each variable its value, or, where that fails in the middle, leaves them all as they were.

    Each array is laid out for the model when its turn comes and makes room for the value that was there before.
    """
    before = {}
    try:
        for weight in list(values):
            value = values.pop(weight)()
            held = ops.convert_to_tensor(variables[weight])
            # JAX's are values, which no later write changes; the others write into the tensor that they gave.
            before[weight] = held if keras.backend.backend() == "jax" else ops.copy(held)
            variables[weight].assign(value)
    except BaseException:
        for weight, value in before.items():
            variables[weight].assign(value)
        raise


class _Plan:
    """Which of the file's arrays become which of the model's weights. Raises unless all are accounted for."""

    def __init__(self, model, checkpoint, skip, position_resize):
        self.model = model
        self.checkpoint = checkpoint
        self.position_resize = position_resize or checkpoint.position_resize
        resize.check_method(self.position_resize)
        self.architecture = architecture.of_model(model)
        self.variables = architecture.weights_of(model)
        # The kernel that the images meet first, and so the one that their channels matter to.
        self.entrance = next(k for k in ("root_conv/kernel", "patch_embedding/kernel") if k in self.variables)
        self.prefix_there, self.grid_there = 0, None
        # The file's rows for prefix tokens, kept until the tokens themselves have been read.
        self.prefix_rows = None
        if POSITIONS in checkpoint.weights:
            here = next((layer for layer in model.layers if layer.name == "position_embedding"), None)
            self.prefix_there, self.grid_there = checkpoint.positions_for(
                self.architecture.grid_size, getattr(here, "num_prefix_positions", 0)
            )
        self.report = LoadReport(checkpoint.path, checkpoint.source.name, model.name)
        self.report.skipped.update(dict.fromkeys(checkpoint.ignored, NO_WEIGHTS))
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
        if classes_here != classes_there:
            for name in {"head", "head_dist"} & (here | there) - set(dropped):
                dropped[name] = f"{classes_there or 'no'} classes in the file, {classes_here or 'none'} in the model"
        if "head_dist" in here and len({"head", "head_dist"} & set(dropped)) == 1:
            raise ValueError(
                "Invalid value received for argument `skip`. Expected both heads of a distilled model or none, since "
                f"the mean with a zero head would be half the logits. Received: {skip}"
            )
        if self.checkpoint.source.name == "siglip" and "head" in there - set(dropped):
            dropped.setdefault("pooling", "its own classifier leaves the attention pooling out")
        if "head" in dropped and "pre_logits" in there - here:
            dropped.setdefault("pre_logits", "goes with the head, since the model has no pre_logits")
        return dropped

    def _match(self):
        missing, mismatched, used = [], {}, set()
        shapes = self.checkpoint.shapes
        for weight, variable in self.variables.items():
            layer = weight.split("/")[0]
            if layer in self.dropped:
                self._keep(weight, layer)
                continue
            name = self.checkpoint.source.find(weight)
            if name is None or any(key not in shapes for key in name.keys):
                missing.append(weight)
                used.update(name.keys if name else ())
                continue
            used.update(name.keys)
            self.rows[weight] = name
            shape, heads = tuple(variable.shape), self.architecture.heads
            there = tuple(shapes[key] for key in name.keys)
            if not name.codec.fits(there, shape, heads) and not self._adapts(weight, shape):
                needed = name.codec.file_shapes(shape, heads)
                pairs = zip(name.keys, there, needed, strict=True)
                mismatched.update({key: (a, b) for key, a, b in pairs if a != b})
        unexpected = []
        for key in shapes:
            layer = self.checkpoint.source.layer_of(key)
            if layer in self.dropped:
                self.report.skipped[self._in_file(key)] = self.dropped[layer]
            elif key not in used:
                unexpected.append(self._in_file(key))
        heads_there = self.checkpoint.architecture.num_heads
        other_heads = heads_there not in (None, self.architecture.num_heads)
        if unexpected or missing or mismatched or other_heads:
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

    def _in_file(self, key):
        """The file's own key, with the block's number where it stacks them."""
        place = self.checkpoint.places[key]
        return place.key if place.index is None else f"{place.key}[{place.index}]"

    def _keep(self, weight, layer):
        zero = layer in ("head", "head_dist")
        if zero:
            self.zeroed.append(weight)
        self.report.kept[weight] = "zero" if zero else "as it was"

    def _adapts(self, weight, needed):
        """Whether the file's array, though of another shape, can become the weight."""
        there = self.checkpoint.weights.get(weight, ())
        if len(there) != len(needed):
            return False
        if weight == self.entrance:
            # The patches of a hybrid are cut from a feature map, to which no resizing of images applies.
            same_patch = there[:2] == needed[:2] or weight == "patch_embedding/kernel"
            return same_patch and there[3] == needed[3]
        if weight == POSITIONS:
            return (there[0], there[2]) == (needed[0], needed[2]) and self.grid_there is not None
        return False

    def _hints(self, unexpected, mismatched):
        if any(key.startswith("pre_logits/") for key in unexpected):
            yield "The file has a pre_logits layer: build the model with representation_size, or leave the head out."
        tokens = "class_token/tokens"
        if (tokens in self.checkpoint.weights) != (tokens in self.variables):
            yield 'Only one of the two has a class token: pass skip=("class_token",) to load_weights to leave it out.'
        there, here = self.checkpoint.architecture.num_heads, self.architecture.num_heads
        if there not in (None, here):
            yield f"The file's blocks have {there} attention heads, the model's {here}."
        name = self.checkpoint.source.find(POSITIONS)
        if name and name.keys[0] in mismatched and self.grid_there is None:
            yield "The file does not tell the grid of its position embeddings: pass grid=(rows, columns)."

    def read(self):
        """Returns {weight: function that gives its array} for all weights that change. The model is not touched.

        All that could fail has been done by then: what is left to the functions is to rearrange numbers.
        """
        values = {weight: partial(np.zeros, tuple(self.variables[weight].shape), "float32") for weight in self.zeroed}
        wanted = {}
        for weight, name in self.rows.items():
            for key in name.keys:
                wanted.setdefault(key, []).append(weight)
        parts = {}
        for key, array in self.checkpoint.read(wanted):
            for weight in wanted[key]:
                parts.setdefault(weight, {})[key] = array
                if len(parts[weight]) == len(self.rows[weight].keys):
                    values[weight] = self._convert(weight, parts.pop(weight))
        self._add_prefix_positions(values)
        return values

    def _convert(self, weight, parts):
        name, shape = self.rows[weight], tuple(self.variables[weight].shape)
        arrays = [parts[key] for key in name.keys]
        self.report.loaded[weight] = shape
        if weight not in (self.entrance, POSITIONS):
            return partial(name.codec.to_model, arrays, shape)
        value = name.codec.to_model(arrays, self.checkpoint.weights.get(weight, shape))
        if weight == self.entrance:
            value = self._convert_entrance(weight, value, shape)
        else:
            value = self._convert_positions(weight, value)
        return partial(np.asarray, value)

    def _convert_entrance(self, weight, kernel, shape):
        old, new = kernel.shape[2], shape[2]
        if kernel.shape[:2] != shape[:2]:
            sizes = " -> ".join(f"{height} x {width}" for height, width in (kernel.shape[:2], shape[:2]))
            self.report.resized[weight] = f"patches of {sizes} (pseudo-inverse)"
            kernel = resize.resize_patches(kernel, shape[:2])
        if old != new:
            how = "summed" if new == 1 else f"tiled, times {old}/{new}"
            self.report.adapted[weight] = f"{old} -> {new} channels ({how})"
        return resize.adapt_channels(kernel, new)

    def _convert_positions(self, weight, embeddings):
        grid_here = self.architecture.grid_size
        if self.grid_there is None or grid_here is None:
            # Of a size that fits as it is.
            return embeddings
        layer = self.model.get_layer("position_embedding")
        prefix, patches = embeddings[:, : self.prefix_there], embeddings[0, self.prefix_there :]
        self.prefix_rows = prefix
        if layer.num_prefix_positions != self.prefix_there:
            self.report.adapted[weight] = (
                f"{self.prefix_there} -> {layer.num_prefix_positions} positions of prefix tokens"
            )
            prefix = np.zeros((1, layer.num_prefix_positions, embeddings.shape[-1]), "float32")
            if "class_token" in self.dropped:
                prefix = np.asarray(ops.convert_to_numpy(self.variables[weight]), "float32")
                prefix = prefix[:, : layer.num_prefix_positions]
            elif layer.num_prefix_positions:
                shared = min(layer.num_prefix_positions, self.prefix_there)
                prefix[:, :shared] = embeddings[:, :shared]
        if self.grid_there != grid_here:
            sizes = " -> ".join(f"{rows} x {columns}" for rows, columns in (self.grid_there, grid_here))
            self.report.resized[weight] = f"{sizes} ({_HOW[self.position_resize]})"
            patches = resize.resize_positions(
                patches.reshape(*self.grid_there, -1), *grid_here, method=self.position_resize
            )
        return np.concatenate([prefix, patches.reshape(1, -1, patches.shape[-1])], axis=1)

    def _add_prefix_positions(self, values):
        """Adds to the prefix tokens the positions that the file has for them and the model has no rows for."""
        if self.prefix_rows is None:
            return
        tokens = (*architecture.PREFIX_TOKENS, *architecture.REGISTERS)
        counts = {name: self.checkpoint.weights[name][1] for name in tokens if name in self.checkpoint.weights}
        here = self.model.get_layer("position_embedding").num_prefix_positions
        for weight, rows in architecture.rows_of_tokens(self.prefix_rows, counts, here):
            if weight in values:
                values[weight] = partial(np.add, values[weight](), rows)
