"""Reads the config of a ViT from a checkpoint. The steps in this module are the same for all sources."""

import math
import numbers
import re

from keras_vit import arguments
from keras_vit.models.bit.checkpoint import DIFFERENT_CODE, stages_from_layers
from keras_vit.models.bit.config import ROOT_WIDTH, total_stride
from keras_vit.models.vit import variants as vit
from keras_vit.models.vit.checkpoint import original, timm, transformers
from keras_vit.models.vit.checkpoint.usual import put_usual
from keras_vit.models.vit.names.huggingface import TRANSFORMERS
from keras_vit.models.vit.names.keras import keras_source
from keras_vit.models.vit.names.official import BIG_VISION, OFFICIAL
from keras_vit.models.vit.names.original import OPEN_CLIP_TIMM, ORIGINALS
from keras_vit.models.vit.names.timm import DEIT, TIMM
from keras_vit.weights.found import KNOWN, STATED, Positions, put_settings
from keras_vit.weights.record import begin, read_record
from keras_vit.weights.tokens import PREFIX_TOKENS, REGISTERS

# {`Source`: function that adds the config fields that arrays do not show}. If several sources fit a file, the first
# one is used.
READERS = {
    **dict.fromkeys((OFFICIAL, BIG_VISION), lambda file, found: None),
    **dict.fromkeys((TIMM, DEIT, OPEN_CLIP_TIMM), timm.read_config),
    **dict.fromkeys(TRANSFORMERS, transformers.read_config),
    **dict.fromkeys(ORIGINALS, original.read_config),
    keras_source("vit", "block_00"): original.read_keras,
}
_POSITIONS = "position_embedding/embeddings"


def read_config(file, grid_size=None):
    """Returns the config fields of a `CanonicalFile` as a `Found`.

    `grid_size` is the (rows, columns) of the position embeddings in the file, or None.
    """
    entrance = "patch_embedding/kernel" if file.size("root_conv/kernel", 4, 3) is None else "root_conv/kernel"
    found = begin(file, entrance)
    if file.source.name in ("dinov2", "dinov2_original") and "registers/tokens" in file.weights:
        # If the model has registers, DINOv2's code antialiases when it resizes the position table.
        found.position_interpolation = "bicubic_antialias"
    _read_arrays(file, found)
    states_image_size = "config" in file.own or file.container in ("huggingface", "timm")
    if not states_image_size:
        _read_positions(file, found, grid_size)
    if "config" in file.own:
        read_record(file, found)
    else:
        put_usual(file, found)
        read = {source.name: read for source, read in READERS.items()}[file.source.name]
        read(file, found)
        _read_what_sizes_show(file, found)
    if states_image_size:
        _read_positions(file, found, grid_size)
    return found


def _read_arrays(file, found):
    """Adds to `found` the config fields that follow from the arrays."""
    weights, root_width = file.weights, file.size("root_conv/kernel", 4, 3)
    patch = tuple(file.size("patch_embedding/kernel", 4, axis) for axis in (0, 1))
    hidden, mlp_dim = (file.size(f"block_00/mlp/dense_{i}/kernel", 2, i % 2) for i in (1, 2))
    sizes = {
        "hidden_dim": file.size("patch_embedding/kernel", 4, 3),
        "num_layers": sum(bool(re.fullmatch(r"block_\d+", name)) for name in file.layers) or None,
        "mlp_dim": mlp_dim,
        "patch_size": None if None in patch else patch,
    }
    for name, value in sizes.items():
        if value is None:
            found.leave("the shapes of the arrays do not show it", name)
        else:
            found.put(STATED, **{name: value})
    found.put(
        STATED,
        class_token="class_token/tokens" in weights,
        distillation_token="distillation_token/tokens" in weights,
        num_registers=weights["registers/tokens"][1] if "registers/tokens" in weights else 0,
        qk_norm="block_00/attention/query_norm/gamma" in weights,
        norm_after_pooling="fc_norm/gamma" in weights,
        patch_bias="patch_embedding/bias" in weights,
        norm_before_blocks="norm_before_blocks/gamma" in weights,
        qkv_bias="block_00/attention/qkv/bias" in weights,
        attention_norm="block_00/attention/norm/gamma" in weights,
        # In a gated MLP, the output of the first layer is twice as wide as the input of the second layer.
        gated_mlp=None not in (hidden, mlp_dim) and hidden == 2 * mlp_dim,
        mlp_norm="block_00/mlp/norm/gamma" in weights,
    )
    if root_width is not None:
        found.put(STATED, stages=stages_from_layers(file.layers), width_factor=root_width / ROOT_WIDTH)
    if file.source.find("block_00/attention/qkv/bias").codec.without_keys:
        found.put(STATED, key_bias=False)
    for name, weight in (("projection_dim", "projection/kernel"), ("representation_size", "pre_logits/kernel")):
        if weight in weights:
            found.put(STATED, **{name: weights[weight][1]})
    qkv = weights.get("block_00/attention/qkv/kernel", ())
    if len(qkv) != 2:
        return
    # In files of some sources, the shapes of arrays show the number or the width of the heads.
    shape, width = file.shapes[file.source.find("block_00/attention/qkv/kernel").keys[0]], qkv[1] // 3
    norm = weights.get("block_00/attention/query_norm/gamma", ())
    head_dim = norm[0] if len(norm) == 1 else original.head_dim(file) or file.source.head_dim
    if len(shape) == 3:
        found.put(STATED, num_heads=shape[1])
    elif head_dim and width % head_dim == 0:
        found.put(STATED, num_heads=width // head_dim)


def _read_what_sizes_show(file, found):
    """Adds to `found` the config fields that are the same in all published models with these arrays or sizes."""
    weights = file.weights
    if "distillation_head" not in found.values:
        found.put(STATED, distillation_head="head_dist/kernel" in weights or "head/kernel" not in weights)
    if found.get("qkv_bias") and "key_bias" not in found.values and "key_bias" not in found.unknown:
        found.put(STATED, key_bias=True)
    if "block_00/layer_scale_1/gamma" in weights:
        # This initial value does not matter, because the file contains the weights of LayerScale.
        found.put(STATED, certain=False, layer_scale_init=1.0)
    if "num_heads" not in found.values and "num_heads" not in found.unknown:
        dims = (found.get(name) for name in ("hidden_dim", "num_layers", "mlp_dim"))
        # Do not derive num_heads for DINOv3. Some DINOv3 models have the widths and the depth of another model, but
        # another number of heads.
        known = not file.source.name.startswith("dinov3")
        published = vit.num_heads_from_sizes(*dims, found.get("gated_mlp")) if known else None
        if published is None:
            found.leave("the widths and the depth do not determine it", "num_heads")
        else:
            found.put(f"{KNOWN} models of these sizes", certain=False, num_heads=published)
    if "root_conv/kernel" in file.weights:
        put_settings(found, file.source, "resnet_epsilons", reason=DIFFERENT_CODE)


def _read_positions(file, found, grid_size):
    """Adds to `found` the layout of the position embeddings, and the image size that follows from the layout."""
    table = file.weights.get(_POSITIONS, ())
    if len(table) == 3:
        found.positions = _positions(file, found, grid_size)
        has_position = found.positions.num_prefix > 0 or not found.get("class_token")
        found.put(STATED, class_token_position=has_position)
        if "image_size" in found.values or "image_size" in found.unknown:
            return
        if found.positions.grid is None:
            found.leave(
                f"its {table[1]} position embeddings do not form a square grid: pass grid_size=(rows, columns) of the "
                "file, and image_size= for another size",
                "image_size",
            )
        elif found.get("patch_size") is not None:
            pairs = zip(found.positions.grid, found.get("patch_size"), strict=True)
            found.put(STATED, image_size=tuple(n * patch * _stride(found) for n, patch in pairs))


def _stride(found):
    return 1 if found.get("stages") is None else total_stride(found.get("stages"))


def _positions(file, found, grid_size):
    """Returns the `Positions` of a file.

    The grid is the first of these that exists: `grid_size`, the grid stated in the file, the grid of the file's image
    size, a square grid. If none exists, the grid is None.
    """
    length = file.weights[_POSITIONS][1]
    tokens, registers = (
        sum(file.weights[name][1] for name in group if len(file.weights.get(name, ())) == 3)
        for group in (PREFIX_TOKENS, REGISTERS)
    )
    order = (tokens, tokens + registers, 0) if file.source.class_token_position else (0, tokens)
    counts = {prefix: length - prefix for prefix in dict.fromkeys(order)}
    stated, where = grid_size, "argument `grid_size`"
    if stated is None:
        stated, where = file.own.get("grid"), "the grid stated in the file"
    patch, image_size = found.get("patch_size") or (0, 0), found.get("image_size") or (None, None)
    if stated is None and 0 not in patch and None not in image_size:
        grid = tuple(-(-side // _stride(found)) // size for side, size in zip(image_size, patch, strict=True))
        stated = grid if grid[0] * grid[1] in counts.values() else None
    if stated is None:
        for prefix, count in counts.items():
            side = math.isqrt(max(count, 0))
            if side and side * side == count:
                return Positions(prefix, (side, side))
        return Positions(order[0])
    two = isinstance(stated, (tuple, list)) and len(stated) == 2
    if two and all(isinstance(n, numbers.Integral) and n > 0 for n in stated):
        for prefix, count in counts.items():
            if stated[0] * stated[1] == count:
                return Positions(prefix, (int(stated[0]), int(stated[1])), True)
    raise ValueError(
        f"Expected {where} to be the (rows, columns) of the {counts[order[0]]} position embeddings of patches in "
        f"{file.path!r}. Received: {stated!r}"
    )


def positions_for(file, positions, grid, num_prefix):
    """Returns a file's (number of prefix positions, grid of patches); `num_prefix` and `grid` are the model's."""
    # A table of 16 positions is read as 4 x 4, even if the model's grid is 2 x 8. Only .weights.h5 files of Keras are
    # read with the model's grid, because they do not contain the grid and were written by a model like this one.
    if _POSITIONS not in file.weights:
        return 0, None
    count = file.weights[_POSITIONS][1]
    same = grid and grid[0] * grid[1] == count - num_prefix
    if same and file.source.name == "keras" and not positions.is_stated:
        return num_prefix, grid
    if positions.grid is not None:
        return positions.num_prefix, positions.grid
    fits = grid and grid[0] * grid[1] == count - positions.num_prefix
    return positions.num_prefix, grid if fits else None


def fit(file, found, fields, given):
    """Checks that the file has enough positions, and returns the field `head_dim`, as `Family.fit` describes."""
    # A .keras file needs no check, because the model in the file was built with this position table.
    if file.container != "keras" and not {"image_size", "grid_size", "patch_size", "position_embedding"} & set(given):
        check_positions(file, fields)
    return {"head_dim": fields["hidden_dim"] // arguments.positive_int("num_heads", fields["num_heads"])}


def check_positions(file, fields):
    """Raises ValueError if the image size of a file needs more position embeddings than its table contains."""
    grid = fields.get("grid_size")
    fixed = fields.get("position_embedding", "learned") in ("sincos2d", "none")
    if fixed or (grid is None and None in fields["image_size"]):
        return
    stride = total_stride(fields["stages"]) if fields.get("stages") is not None else 1
    rows, columns = grid or arguments.grid_size(fields["image_size"], fields["patch_size"], stride)
    table = file.weights.get(_POSITIONS, ())
    held = table[1] if len(table) == 3 else 0
    if rows * columns > held:
        raise ValueError(
            f"Expected {file.path!r} to contain the {rows * columns} position embeddings that images of "
            f"{fields['image_size']} pixels need. Received: {held}. Pass the image_size= of the model in the file."
        )
