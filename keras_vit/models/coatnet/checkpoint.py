"""Derives the config of a CoAtNet from the model's name and arguments in timm, or from the arrays of a state dict."""

import dataclasses
import math
import re

from keras_vit import arguments
from keras_vit.config import DEFAULT_IMAGE_SIZE, ModelConfig
from keras_vit.models.coatnet.config import VARIANTS, CoAtNetConfig, image_size_in_name, table_grid
from keras_vit.weights import timm_config
from keras_vit.weights.found import DEFAULT, KNOWN, STATED, put_preprocessing
from keras_vit.weights.record import begin, read_record

# The ending of the weight paths of position tables.
TABLE = "/attention/position_table"
NAMES = [name for name in VARIANTS if name not in "012345"]
# {timm's name without image size: ending of the full name}. The ending of all other names is "_224".
SUFFIXES = {"test_coatnet": ""}
# {timm argument: config field}. A folder with other arguments that change the outputs is refused.
_SIZES = {
    **{"embed_dim": "widths", "depths": "depths", "stem_width": "stem_widths", "transformer_dim_head": "head_dim"},
    **{"head_hidden_size": "representation_size", "transformer_init_values": "layer_scale_init"},
    "transformer_rel_pos_dim": "position_mlp_dim",
}
# The timm arguments that do not change the outputs.
_IGNORED = re.compile("img_size|in_chans|num_classes|.*drop(_path)?(_rate)?")
# The config fields that an architecture of timm determines.
_FIELDS = {field.name for field in dataclasses.fields(CoAtNetConfig)}
_FIELDS -= {*(field.name for field in dataclasses.fields(ModelConfig)), "table_image_size", "position_interpolation"}


def config_of(path, name, args):
    """Returns the `CoAtNetConfig` of timm's architecture `name` with the arguments `args`.

    Raises ValueError, with the file's `path`, if the architecture or an argument is not supported.
    """
    variant, fields = re.sub(r"_\d{3}$", "", name), {}
    if variant not in NAMES:
        known = ", ".join(f"{each}{SUFFIXES.get(each, '_224')}" for each in NAMES)
        raise ValueError(f"Cannot load {path!r}: timm's {name!r} is not supported. Expected one of {known}.")
    for key, value in args.items():
        if key in _SIZES:
            # If a model does not have a layer, timm may write 0 instead of None as the size of the layer.
            fields[_SIZES[key]] = value or None
        elif not _IGNORED.fullmatch(key) and (key, value) != ("global_pool", "avg"):
            raise ValueError(f"Cannot load {path!r}: {key}={value!r} in its config is not supported.")
    if CoAtNetConfig.from_variant(variant).position_mlp_dim is None:
        # A table contains the position biases. timm then ignores its argument for the width of an MLP.
        fields.pop("position_mlp_dim", None)
    if "representation_size" in fields:
        fields["norm_after_pooling"] = fields["representation_size"] is not None
    try:
        return CoAtNetConfig.from_variant(variant, **fields)
    except ValueError as error:
        raise ValueError(f"Cannot load {path!r}: its model_args are invalid. {error}") from None


def timm_architecture(config):
    """Returns (name of timm's architecture, `model_args`) for a config, as `Family.timm` describes."""
    size = config.table_size
    # timm cannot use a side that is not a multiple of the total stride, because the residual branch and the shortcut of
    # a block would have different sizes.
    fits = None in config.image_size or not any(side % 2 ** (len(config.depths) + 1) for side in size)
    for name in NAMES if fits else ():
        if _architecture(CoAtNetConfig.from_variant(name)) == _architecture(config):
            args = {} if size == (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE) else {"img_size": list(size)}
            return f"{name}{SUFFIXES.get(name, '_224')}", args
    raise ValueError("a size or options for which timm has no name")


def fields_from_arrays(shapes):
    """Returns the config fields that follow from a state dict's {key: shape}."""
    blocks = sorted({(int(s), int(b)) for s, b in re.findall(r"stages\.(\d+)\.blocks\.(\d+)\.", "\n".join(shapes))})
    stages = sorted({s for s, _ in blocks})
    starts = {block: f"stages.{block[0]}.blocks.{block[1]}." for block in blocks}
    conv = [block for block in blocks if f"{starts[block]}conv1_1x1.weight" in shapes]
    attention = [block for block in blocks if block not in conv]
    last_of_conv, last_of_attention = (max(found, default=None) for found in (conv, attention))

    def size(key, axis=0):
        shape = shapes.get(key, ())
        return shape[axis] if axis < len(shape) else 0

    def width(stage):
        start = starts[stage, min(b for s, b in blocks if s == stage)]
        return size(f"{start}conv3_1x1.weight") or size(f"{start}attn.proj.weight")

    fields = {
        "depths": tuple(sum(s == stage for s, _ in blocks) for stage in stages),
        "widths": tuple(width(stage) for stage in stages),
        "stem_widths": (size("stem.conv1.weight"), size("stem.conv2.weight")),
        "conv_depths": tuple(sum(s == stage for s, _ in conv) for stage in stages),
        "norm_after_pooling": "head.norm.weight" in shapes,
        "representation_size": size("head.pre_logits.fc.weight") or None,
        "transformer_norm": "batch" if {"norm.running_mean", "head.norm.running_mean"} & set(shapes) else "layer",
    }
    if conv:
        start = starts[last_of_conv]
        fields["conv_bias"] = f"{start}conv3_1x1.bias" in shapes
        fields["se_before_norm"] = f"{start}se_early.fc1.weight" in shapes
    if attention:
        start = f"{starts[last_of_attention]}attn."
        heads = size(f"{start}rel_pos.relative_position_bias_table", 1) or size(f"{start}rel_pos.mlp.fc2.weight")
        fields["position_mlp_dim"] = size(f"{start}rel_pos.mlp.fc1.weight") or None
        fields["head_dim"] = size(f"{start}proj.weight", 1) // max(heads, 1)
        fields["layer_scale_init"] = 1.0 if f"{starts[last_of_attention]}ls1.gamma" in shapes else None
        projected = [starts[block] for block in attention if f"{starts[block]}shortcut.expand.weight" in shapes]
        if projected:
            fields["shortcut_bias"] = f"{projected[0]}shortcut.expand.bias" in shapes
            inside = size(f"{projected[0]}attn.proj.weight", 1)
            fields["expanded_from"] = "output" if inside == size(f"{projected[0]}attn.proj.weight") else "input"
    return fields


def timm_variant(fields):
    """Returns the name of timm's CoAtNet with these `fields` (from `fields_from_arrays`), or None if there is none."""
    for name in NAMES:
        config = CoAtNetConfig.from_variant(name)
        # `fields` is from the arrays of a file. The arrays show the numbers of MBConv blocks, so replace the variant's
        # None by numbers. The arrays do not show the initial value of LayerScale, for which `fields` contains 1.0.
        usual = tuple(depth if i < 2 else 0 for i, depth in enumerate(config.depths))
        shown = {"conv_depths": config.conv_depths or usual, "layer_scale_init": config.layer_scale_init and 1.0}
        if all({**vars(config), **shown}[field] == value for field, value in fields.items()):
            return name
    return None


def _architecture(config):
    return {name: getattr(config, name) for name in _FIELDS}


def read_config(file, grid_size=None):
    """Returns a `Found` with the config fields of a `CanonicalFile` and the grids of its position tables."""
    found = begin(file, "stem_conv/kernel")
    if "config" in file.own:
        read_record(file, found)
    elif file.container == "timm":
        timm_config.read_folder(file, found)
        _read_architecture(file, found)
    else:
        put_preprocessing(found, file.source, file.source.preprocessing)
        _read_arrays(file, found)
    if "position_interpolation" not in found.values:
        found.put(f"{DEFAULT} timm", position_interpolation=file.source.position_interpolation)
    found.tables = {weight: _grid_of_table(file, found, weight) for weight in file.weights if weight.endswith(TABLE)}
    return found


def table_grids(config, weights):
    """Returns {weight path: (rows, columns) of the feature map} for the position tables among `weights`."""
    return {weight: config.grid(_stage(weight)) for weight in weights if weight.endswith(TABLE)}


def _read_architecture(file, found):
    """Adds to `found` the config fields that a timm folder's architecture and arguments imply."""
    name, config = str(file.config.get("architecture")), file.config
    stated = {"global_pool": config["global_pool"]} if "global_pool" in config else {}
    fields = _architecture(config_of(file.path, name, stated | timm_config.model_args(file)))
    found.put(f"{KNOWN} {name}", **fields, name=re.sub(r"_\d{3}$", "", name))
    if "image_size" not in found.values and "image_size" not in found.unknown:
        found.put(f"{KNOWN} {name}", image_size=(image_size_in_name(name),) * 2)


def _read_arrays(file, found):
    """Adds to `found` the config fields that follow from the arrays of a state dict."""
    shown = fields_from_arrays(file.shapes)
    found.put(STATED, **shown)
    name = timm_variant(shown)
    if name is None:
        found.leave(
            "no CoAtNet of timm has arrays of these shapes; pass the variant that the model is based on", "variant"
        )
    else:
        fields = _architecture(CoAtNetConfig.from_variant(name))
        found.put(
            f"{KNOWN} {name}", **{field: value for field, value in fields.items() if field not in shown}, name=name
        )
    tables = {weight: shape for weight, shape in file.weights.items() if weight.endswith(TABLE) and len(shape) == 2}
    sides = {(_side(shape[0]) or 0) * 2 ** (_stage(weight) + 1) for weight, shape in tables.items()}
    if len(sides) == 1 and 0 not in sides:
        found.put(STATED, image_size=(*sides, *sides))


def _stage(weight):
    return int(weight.split("_")[1])


def _grid_of_table(file, found, weight):
    """Returns (rows, columns) of the feature map that a checkpoint's position table belongs to; None if unknown."""
    count = file.weights[weight][0]
    size = found.get("table_image_size") or found.get("image_size")
    if size is not None and None not in arguments.image_size(size):
        rows, columns = table_grid(arguments.pair("image_size", size), _stage(weight))
        if (2 * rows - 1) * (2 * columns - 1) == count:
            return rows, columns
    side = _side(count)
    return None if side is None else (side, side)


def _side(count):
    """Returns the side of the square feature map whose position table has `count` offsets; None if no side fits."""
    root = math.isqrt(max(count, 0))
    return (root + 1) // 2 if root * root == count and root % 2 else None
