"""The sizes of models, and the settings that weights do not show."""

import dataclasses
from types import SimpleNamespace

from keras_vit import arguments
from keras_vit.config import carrier_of, config_of
from keras_vit.models.catalog import CHECKPOINTS
from keras_vit.models.efficientnet.config import efficientnet_of
from keras_vit.models.vit import variants as vit
from keras_vit.models.vit.config import ViTConfig

# The sizes that decide whether a file fits a model. `num_layers` is 0 without blocks, and `stages` and `width_factor`
# are None without a ResNet. `model` names all sizes of a model that is neither ViT nor BiT.
SIZES = (
    *("model", "hidden_dim", "num_layers", "num_heads", "mlp_dim", "patch_size", "in_channels", "num_classes"),
    *("grid_size", "stages", "width_factor"),
)
# The layers that take the images, by family.
_FIRST = {"vit": "patch_embedding", "bit": "root_conv", "coatnet": "stem_conv", "efficientnet": "stem_conv"}


def sizes_of(model):
    """Returns the `SIZES` of a model from its config, and from its layers where a user may have changed them."""
    config = config_of(model)
    if config.family not in _FIRST:
        raise ValueError(
            "Expected a model of a family whose weights other code bases have too. Received: model "
            f"{model.name!r} of family {config.family!r}. Use model.save and keras.saving.load_model, or "
            "model.save_weights and model.load_weights."
        )
    found = {layer.name: layer for layer in model.layers}
    is_vit = isinstance(config, ViTConfig)
    first_layers = (_FIRST[config.family], config.block_names[0])
    missing = [name for name in first_layers if name not in found]
    if missing:
        raise ValueError(
            f"Expected a model of this package's builders, with layers named {', '.join(first_layers)}, ... "
            f"Received: model {model.name!r} without {' and '.join(missing)}; its layers are {', '.join(found)}. "
            "If one of them holds the ViT, pass that: model.get_layer(...)."
        )
    if not is_vit and config.family != "bit":
        # The shapes of all weights decide whether a file fits.
        sizes = {"model": getattr(config, "model_name", None), "num_layers": 0}
        return {**dict.fromkeys(SIZES), **sizes, "num_classes": getattr(found.get("head"), "units", 0)}
    sizes = {name: getattr(config, name, None) for name in SIZES}
    sizes["num_layers"] = sum(name in found for name in config.block_names) if is_vit else 0
    sizes["num_classes"] = getattr(found.get("head"), "units", 0)
    if is_vit:
        sizes["grid_size"] = config.grid if "position_embedding" in found else None
        sizes["width_factor"] = None if config.stages is None else config.width_factor
    return sizes


def heads_of(sizes):
    """Returns (num_heads, head_dim)."""
    heads = sizes["num_heads"]
    return heads, heads and sizes["hidden_dim"] // heads


def name_of(sizes):
    """Returns the name of the variant with these sizes, such as "ViT-L/16" or "BiT-R50x1", or None."""
    return sizes["model"] or vit.name_of(SimpleNamespace(**sizes))


def describe_sizes(sizes):
    """Formats sizes for messages."""
    parts = []
    if sizes["stages"] is not None:
        parts.append(f"a ResNet of stages {sizes['stages']}, width factor {sizes['width_factor']:g}")
    if sizes["num_layers"]:
        patch, grid = (size and f"{size[0]} x {size[1]}" for size in (sizes["patch_size"], sizes["grid_size"]))
        parts.append(
            f"hidden_dim {sizes['hidden_dim']}, {sizes['num_layers']} blocks, {sizes['num_heads'] or '?'} heads, "
            f"mlp_dim {sizes['mlp_dim']}, patch {patch or 'unknown'}, grid {grid or 'unknown'}"
        )
    text = ", ".join([*parts, f"{sizes['num_classes']} classes"])
    return f"{name_of(sizes)} ({text})" if name_of(sizes) else text


def fields_of(model):
    """Returns the fields of a model's config, with pooling "none" if its user replaced the layer."""
    config = config_of(model)
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if isinstance(config, ViTConfig):
        fields["pooling"] = _pooling(model, config)
        if config.stages is None:
            del fields["resnet_epsilons"]
    return fields


def allowed_settings(allow):
    """Returns the names in `allow`, a string or several; raises unless they decide the outputs of some family."""
    allow = (allow,) if isinstance(allow, str) else tuple(allow)
    known = sorted({name for module in CHECKPOINTS.values() for name in module.SETTINGS})
    unknown = [name for name in allow if name not in known]
    if unknown:
        raise arguments.invalid("allow", f"names out of {', '.join(known)}", unknown)
    return allow


def _pooling(model, config):
    """Returns the pooling of a model; "none" if its user replaced it."""
    return config.pooling if any(layer.name == "pooling" for layer in model.layers) else "none"


def sizes_of_file(file, found):
    """Returns the `SIZES` of a checkpoint; unknown ones are None."""
    sizes = {name: found.get(name) for name in SIZES}
    if not found.certain("num_heads"):
        sizes["num_heads"] = None
    model = None
    if file.source.family == "efficientnet":
        name = efficientnet_of(found.get("widths", ()), found.get("repeats", ()))
        model = name and f"EfficientNet-{name}"
    return {**sizes, "model": model, "num_layers": sizes["num_layers"] or 0, "grid_size": found.positions.grid}


def unwritten(model, source):
    """Yields the properties of a model that affect its outputs and that the source's files cannot store."""
    if carrier_of(model).folded:
        yield "preprocessing folded into its patch embedding"
    config = config_of(model)
    if source in ("timm", "timm_bit", "huggingface_bit") and len(config.stages or ()) > 4:
        yield "a ResNet of more than four stages, the last of which that code dilates"
    if not isinstance(config, ViTConfig):
        return
    # `timm_folder` and `transformers_folder` refuse what the classes of timm and transformers do not have.
    usual = {"rotary_embedding": None, "patch_bias": True, "qkv_bias": True, "gated_mlp": False}
    for name, value in usual.items() if source in ("official", "big_vision") else ():
        if getattr(config, name) != value:
            yield f"{name}={getattr(config, name)!r}"
    # Without a table, big_vision's code uses sine-cosine positions, and the others use none.
    if config.position_embedding == ("none" if source == "big_vision" else "sincos2d"):
        yield f'position_embedding="{config.position_embedding}"'
    pooling = _pooling(model, config)
    if pooling == "none":
        yield 'pooling="none"'
    if pooling == "token_gap" and source != "dinov2":
        yield 'pooling="token_gap"'
    if pooling == "gap" and config.class_token and not config.norm_after_pooling and source != "timm":
        yield 'pooling="gap" beside a class token'
