"""Derives the sizes and settings of a model from a checkpoint's arrays and config."""

import re

from keras_vit import arguments
from keras_vit.models import preprocessing, rotary
from keras_vit.models.bit.config import ROOT_WIDTH, total_stride
from keras_vit.models.families import FAMILIES
from keras_vit.models.model_settings import SETTINGS
from keras_vit.weights.source import ENTRANCES

# Activation names in other code bases, by the name here.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


def image_size(checkpoint):
    """Returns the (height, width) of images that the file states, or None."""
    said = checkpoint.own.get("image_size")
    if said is None:
        said = checkpoint.config.get("image_size")
    if checkpoint.file.container == "timm":
        said = (checkpoint.facts.get("timm") or {}).get("input_size")
        said = said[1:] if isinstance(said, (tuple, list)) else said
        said = _model_args(checkpoint).get("img_size") or said
    preprocessor = checkpoint.facts.get("preprocessor")
    if said is None and isinstance(preprocessor, dict) and "patch_embedding/kernel" not in checkpoint.weights:
        # The config.json of a BiT has no size.
        said = preprocessing.size_of_images(checkpoint.path, preprocessor)
    found = _checked(checkpoint, lambda name, value: arguments.image_size(value), "image_size", said)
    return None if found == (None, None) else found


def _checked(checkpoint, check, name, value, *args):
    """Returns a value of the file's config, checked by `check(name, value, *args)`; None if it is missing."""
    try:
        return None if value is None else check(name, value, *args)
    except ValueError as error:
        raise ValueError(f"Cannot load {checkpoint.path!r}: its config does not fit. {error}") from None


def check_positions(checkpoint, fields):
    """Raises if the image size that a file states needs more position embeddings than its table holds."""
    grid = fields.get("grid_size")
    fixed = fields.get("position_embedding", "learned") in ("sincos2d", "none")
    if fixed or (grid is None and None in fields["image_size"]):
        return
    stride = total_stride(fields["stages"]) if fields.get("stages") is not None else 1
    rows, columns = grid or arguments.grid_size(fields["image_size"], fields["patch_size"], stride)
    table = checkpoint.weights.get("position_embedding/embeddings", ())
    held = table[1] if len(table) == 3 else 0
    if rows * columns > held:
        raise ValueError(
            f"Expected {checkpoint.path!r} to hold the {rows * columns} position embeddings that images of "
            f"{fields['image_size']} pixels need. Received: {held}. Pass the image_size= of its model."
        )


def refuse_unsupported(checkpoint, keys):
    """Raises if canonical keys or the config show a model that the source has and this package has not."""
    config, source = {**checkpoint.config, **_model_args(checkpoint)}, checkpoint.source
    name = config.get("architecture") or config.get("model_type")
    what = f"Cannot load {checkpoint.path!r}: it is a model of {source.name}{f' ({name})' if name else ''} with"
    for pattern, part in source.refused:
        key = next((key for key in keys if re.match(pattern, key)), None)
        if key is not None:
            raise ValueError(f"{what} {part}, which this package does not have. Received: the key {key!r}")
    for setting, value in source.config.items():
        if config.get(setting, value) != value:
            raise ValueError(f"{what} {setting}={config[setting]!r}, which is not supported. Expected: {value!r}")


def stages(weights):
    """Returns the units per stage of the ResNet with these weights, or None without one."""
    layers = {weight.split("/")[0] for weight in weights}
    units = [re.fullmatch(r"stage_(\d+)_unit_\d+", name) for name in layers]
    found = [int(match[1]) for match in units if match]
    return tuple(found.count(stage) for stage in sorted(set(found))) if "root_conv/kernel" in weights else None


def sizes(checkpoint):
    """Returns the `SIZES` of the model; unknown ones are None."""
    weights = checkpoint.weights

    def size(weight, rank, axis):
        shape = weights.get(weight, ())
        return shape[axis] if len(shape) == rank else None

    patch = size("patch_embedding/kernel", 4, 0), size("patch_embedding/kernel", 4, 1)
    layers = {weight.split("/")[0] for weight in weights}
    root_width = size("root_conv/kernel", 4, 3)
    family = FAMILIES.get(checkpoint.source.family)
    return {
        "model": family and family.model_name(checkpoint),
        "hidden_dim": size("patch_embedding/kernel", 4, 3),
        "num_layers": sum(bool(re.fullmatch(r"block_\d+", name)) for name in layers),
        "num_heads": _num_heads(checkpoint),
        # Of a gated MLP the first layer is twice as wide.
        "mlp_dim": size("block_00/mlp/dense_2/kernel", 2, 0),
        "patch_size": None if None in patch else patch,
        "in_channels": next((size(name, 4, 2) for name in ENTRANCES if name in weights), None),
        "num_classes": size("head/bias", 1, 0) or 0,
        "grid_size": checkpoint.grid_size,
        "stages": None if root_width is None else stages(weights),
        "width_factor": None if root_width is None else root_width / ROOT_WIDTH,
    }


def _num_heads(checkpoint):
    """Returns the number of attention heads from the shapes or the file's metadata, or None."""
    qkv = checkpoint.weights.get("block_00/attention/qkv/kernel", ())
    if len(qkv) != 2:
        return None
    shape = checkpoint.shapes[checkpoint.source.find("block_00/attention/qkv/kernel").keys[0]]
    if len(shape) == 3:
        return shape[1]
    width = qkv[1] // 3
    norm = checkpoint.weights.get("block_00/attention/query_norm/gamma", ())
    if len(norm) == 1 and width % norm[0] == 0:
        return width // norm[0]
    head_dim = rotary.head_dim(checkpoint) or checkpoint.source.head_dim
    if head_dim and width % head_dim == 0:
        return width // head_dim
    number = checkpoint.config.get("num_attention_heads", checkpoint.own.get("num_heads"))
    number = checkpoint.of_timm.get("num_heads", number)
    return _checked(checkpoint, _heads, "num_heads", number, width)


def _heads(name, value, width):
    if width % arguments.positive_int(name, value, width):
        raise arguments.invalid(name, f"a divisor of the width, {width}", value)
    return value


def settings_of_resnet(weights):
    """Returns the names of the settings that only a hybrid or BiT has."""
    if "root_conv/kernel" not in weights:
        return ()
    return ("resnet_epsilons",) if "patch_embedding/kernel" in weights else ("resnet_epsilons", "pool_padding")


def settings(checkpoint):
    """Returns those of the `SETTINGS` that the model has; unknown ones are None."""
    config, source = checkpoint.config, checkpoint.source
    if source.family is not None:
        found = FAMILIES[source.family].settings_of(checkpoint)
        return {name: checkpoint.own.get(name, value) for name, value in found.items()}
    found = {"layer_norm_epsilon": source.layer_norm_epsilon, "pooling": _pooling_of_source(checkpoint)}
    found |= {name: getattr(source, name) for name in settings_of_resnet(checkpoint.weights)}
    gated = source.gated_activation if is_gated(checkpoint.weights) else None
    found["activation"] = gated or source.activation
    either = source.name == "clip" or (source.name == "dinov3" and is_gated(checkpoint.weights))
    if either and checkpoint.file.container != "huggingface":
        # Only the config.json of its folder tells.
        found["activation"] = None
    if source.name == "timm" and "norm_before_blocks/gamma" in checkpoint.weights:
        found["layer_norm_epsilon"] = 1e-5
    if "hidden_act" in config and not gated:
        found["activation"] = _known(checkpoint, "hidden_act", config["hidden_act"], ACTIVATIONS)
    if config.get("layer_norm_eps") is not None:
        epsilon = config["layer_norm_eps"]
        found["layer_norm_epsilon"] = _checked(checkpoint, arguments.epsilon, "layer_norm_eps", epsilon)
    if "pre_logits/kernel" in checkpoint.weights:
        _known(checkpoint, "pooler_act", config.get("pooler_act", "tanh"), {"tanh": "tanh"})
    if "patch_embedding/kernel" in checkpoint.weights:
        found["position_embedding"] = fixed_positions(checkpoint)
        if "rotary_embedding" in checkpoint.rotary:
            # None is unknown.
            found["rotary_embedding"] = checkpoint.rotary["rotary_embedding"] or "none"
        if "rotary_grid" in checkpoint.rotary:
            found["rotary_grid"] = list(checkpoint.rotary["rotary_grid"] or ())
    qkv_bias = checkpoint.source.find("block_00/attention/qkv/bias")
    if "block_00/attention/qkv/bias" in checkpoint.weights and not qkv_bias.codec.without_keys:
        found["key_bias"] = True
    for name in ("activation", "layer_norm_epsilon", "pooling"):
        if name == "activation" and gated:
            found[name] = checkpoint.of_timm.get("act_layer", gated)
        elif name in checkpoint.of_timm:
            found[name] = checkpoint.of_timm[name]
        elif name in checkpoint.unknown_of_timm:
            found[name] = None
    own = checkpoint.own
    return {name: own.get(name, found.get(name)) for name in SETTINGS if name in found or name in own}


def is_gated(weights):
    """Returns whether the MLPs are gated, given {weight: shape}."""
    first, second = (weights.get(f"block_00/mlp/dense_{i}/kernel", ()) for i in (1, 2))
    return len(first) == len(second) == 2 and first[1] == 2 * second[0]


def _known(checkpoint, key, value, table):
    if not isinstance(value, str) or value not in table:
        raise ValueError(
            f"Cannot load {checkpoint.path!r}: its config says {key}={value!r}, which is not supported. "
            f"Expected one of {', '.join(map(repr, table))}."
        )
    return table[value]


def _model_args(checkpoint):
    """Returns the arguments of timm's builder in the config of a timm folder, or {}."""
    found = checkpoint.config.get("model_args") if checkpoint.file.container == "timm" else None
    return found if isinstance(found, dict) else {}


def _pooling_of_source(checkpoint):
    """Returns the source's pooling, or None if neither keys nor config show it."""
    weights, source = checkpoint.weights, checkpoint.source.name
    if source == "siglip" and "head/kernel" in weights:
        # Its classifier uses the mean of the tokens, although the file has the attention pooling too.
        return "gap"
    if source in ("dinov2", "dinov2_original") and "head/kernel" in weights:
        # Its classifiers use the mean of the patches too.
        return "token_gap"
    if "pooling/probe" in weights:
        return "map"
    if "class_token/tokens" not in weights:
        # Without its pooling, SigLIP's code gives all tokens.
        return "none" if source == "siglip" else "gap"
    return None if source in ("timm", "deit", "mae", "eva02", "open_clip", "open_clip_timm", "keras") else "token"


def fixed_positions(checkpoint):
    """Returns the position_embedding of a file without a table, or None if there is one, or it is unknown."""
    if "position_embedding/embeddings" in checkpoint.weights:
        return None
    # big_vision's only models without a table; the others have no other absolute positions.
    known = {"big_vision": "sincos2d", **dict.fromkeys(("timm", "deit", "dinov3", "dinov3_original"), "none")}
    return checkpoint.own.get("config", {}).get("position_embedding", known.get(checkpoint.source.name))
