"""Maps ViT configs to timm: weight names and settings of state dicts, and the architectures of folders."""

import dataclasses
import re

from keras_vit.models.vit.names import timm as names
from keras_vit.models.vit.timm_models import ACTIVATIONS, MODELS
from keras_vit.models.vit.variants import SIZES, WORDS

# {timm's word for a size: (hidden_dim, num_layers, mlp_dim)}.
_SIZES = {
    **{word: SIZES[name][:3] for word, name in {**WORDS, "so400m": "SO400M", "giant": "DINOv2G"}.items()},
    **{"medium": (512, 12, 2048), "vit": (64, 6, 192)},
}
# The values that most published models share. `layer_scale` is True if the model has LayerScale.
USUAL = {
    **{"class_token": True, "distillation_token": False, "num_registers": 0},
    **{"position_embedding": "learned", "qkv_bias": True, "qk_norm": False, "patch_bias": True},
    **{"norm_before_blocks": False, "norm_after_pooling": False, "gated_mlp": False, "mlp_norm": False},
    **{"attention_norm": False, "layer_scale": False, "stages": None, "representation_size": None},
    "projection_dim": None,
}
_SCALED = {"layer_scale": True, "class_token_position": False}
_DINOV3 = {"layer_scale": True, "num_registers": 4, "position_embedding": "none"}
_EVA02 = {"gated_mlp": True, "activation": "silu", "key_bias": False, "norm_after_pooling": True}
# (pattern of supported timm architectures, fields that differ from `USUAL`).
_KINDS = (
    (r"test_vit|(deit|vit)_(tiny|small|base|large|huge)_patch\d+_(224|384)", {}),
    (r"deit_\w+_distilled_.*", {"distillation_token": True}),
    (r"deit3_.*", _SCALED),
    (r"vit_(small|base|large)_patch14_dinov2", {"layer_scale": True}),
    (r"vit_(small|base|large)_patch14_reg4_dinov2", {**_SCALED, "num_registers": 4}),
    (r"vit_giant_patch14_dinov2", {"layer_scale": True, "gated_mlp": True}),
    (r"vit_giant_patch14_reg4_dinov2", {**_SCALED, "num_registers": 4, "gated_mlp": True}),
    (r"vit_(medium|base|large|huge)_patch\d+_clip_.*", {"norm_before_blocks": True, "patch_bias": False}),
    (r"vit_(base|large|so400m)_patch\d+_siglip_.*", {"class_token": False}),
    (r"vit_tiny_r_s16_p8_.*", {"stages": (), "patch_size": (8, 8)}),
    (r"vit_(small|base)_r26_s32_.*", {"stages": (2, 2, 2, 2), "patch_size": (1, 1)}),
    (r"vit_base_r50_s16_.*", {"stages": (3, 4, 9), "patch_size": (1, 1)}),
    (r"vit_large_r50_s32_.*", {"stages": (3, 4, 6, 3), "patch_size": (1, 1)}),
    (r"vit_(small|base|large)_patch16_dinov3", {**_DINOV3, "qkv_bias": False}),
    (r"vit_(tiny|small|base|large)_patch16_dinov3_qkvb", {**_DINOV3, "key_bias": False}),
    (r"vit_(small|base|large)_patch16_rope_224", {"layer_scale": True, "position_embedding": "none"}),
    (r"vit_(small|base|large)_patch16_rope_ape_224", _SCALED),
    (r"eva02_tiny_patch14_\d+", {**_EVA02, "mlp_dim": 512}),
    (r"eva02_small_patch14_\d+", {**_EVA02, "mlp_dim": 1024}),
    (r"eva02_base_patch14_\d+", {**_EVA02, "mlp_dim": 2048, "mlp_norm": True}),
    (r"eva02_large_patch14_\d+", {**_EVA02, "mlp_dim": 2730, "mlp_norm": True}),
)


def computed_by_eva(config):
    """Returns True if timm builds the model of a `ViTConfig` as `Eva` instead of `VisionTransformer`."""
    return config.rotary_embedding is not None or (config.qkv_bias and not config.key_bias)


def timm_source(config):
    """Returns a timm `Source` with the weight names of the timm class that computes the model of a `ViTConfig`."""
    source = names.TIMM_STEM if config.stages == () else names.TIMM
    rows = dict(source.names)
    if computed_by_eva(config):
        rows |= names.GAMMAS
        if not config.key_bias and config.mlp_norm:
            rows |= {**names.SPLIT_QKV, **names.SPLIT_BIASES}
        elif not config.key_bias:
            rows |= names.QUERY_VALUE_BIASES
        if config.gated_mlp and (config.mlp_norm or config.rotary_embedding == "dinov3"):
            rows |= names.SPLIT_GATES
    return dataclasses.replace(source, names=rows)


def timm_settings(config):
    """Returns the settings that timm uses for a config; if timm allows several values, prefers the config's value."""
    activations = ["silu"] if config.gated_mlp else ["gelu"]
    if config.norm_before_blocks and not computed_by_eva(config):
        activations += ["quick_gelu"]
    if not (config.class_token or config.norm_after_pooling or config.gated_mlp or computed_by_eva(config)):
        # Some of timm's SigLIP models use this activation.
        activations += ["gelu_tanh"]
    epsilon = 1e-5 if config.norm_before_blocks or config.rotary_embedding == "dinov3" else 1e-6
    chosen = config.activation if config.activation in activations else activations[0]
    return {"activation": chosen, "layer_norm_epsilon": epsilon}


def unwritten(config):
    """Yields the properties of a `ViTConfig` that timm's code cannot compute."""
    if config.pooling == "token_gap":
        yield 'pooling="token_gap"'
    if config.patch_bias == config.norm_before_blocks:
        yield f"patch_bias={config.patch_bias} with norm_before_blocks={config.norm_before_blocks}"
    if computed_by_eva(config) and config.distillation_token:
        yield "a distillation token together with rotary positions or keys without bias"
    if computed_by_eva(config) and config.pooling == "map":
        yield 'pooling="map" together with rotary positions or keys without bias'


def settings_of_name(name):
    """Returns the config fields of a timm architecture except the image size, or None if it is not supported."""
    fields = next((fields for pattern, fields in _KINDS if re.fullmatch(pattern, name)), None)
    if fields is None:
        return None
    sizes = dict(zip(("hidden_dim", "num_layers", "mlp_dim"), _SIZES[name.split("_")[1]], strict=True))
    patch = re.search(r"patch(\d+)", name)
    return {
        **USUAL,
        "class_token_position": True,
        "key_bias": True,
        **sizes,
        "patch_size": (int(patch[1]) if patch else 16,) * 2,
        **MODELS[name],
        **fields,
    }


def _differences(name, config):
    """Yields (field, timm's value, config's value) for each field in which timm's `name` and the config differ."""
    own = {
        "layer_scale": config.layer_scale_init is not None,
        "key_bias": config.key_bias or not config.qkv_bias,
        "class_token_position": config.class_token_position
        or not config.class_token
        or config.position_embedding != "learned",
    }
    for field, value in settings_of_name(name).items():
        found = own.get(field, getattr(config, field, None))
        # timm's `VisionTransformer` accepts any of `ACTIVATIONS` as an argument, so this field may differ from timm's.
        free = field == "activation" and not computed_by_eva(config) and not config.gated_mlp and found in ACTIVATIONS
        if found != value and not free:
            yield field, value, found
    if config.stages is not None and config.width_factor != 1:
        yield "width_factor", 1, config.width_factor
    resized = config.any_size and config.position_embedding == "learned"
    if resized and config.position_interpolation != "bicubic_antialias":
        yield "position_interpolation", "bicubic_antialias", config.position_interpolation


def _nearest(config):
    """Returns (name of the timm architecture with the fewest differences, these differences)."""
    side = f"_{config.image_size[0]}"
    found = [(name, list(_differences(name, config))) for name in MODELS if settings_of_name(name) is not None]
    return min(found, key=lambda pair: (len(pair[1]), not pair[0].endswith(side)))


def timm_architecture(config):
    """Returns (name of timm's architecture, `model_args`) for a config, as `Family.timm` describes."""
    name, differences = _nearest(config)
    if differences:
        listed = ", ".join(f"{field}={found!r} ({value!r} in timm)" for field, value, found in differences)
        raise ValueError(f"settings that no architecture of timm has. The nearest, {name}, differs in {listed}")
    args = {"img_size": list(config.image_size)}
    if config.any_size:
        sides = [rows * patch for rows, patch in zip(config.grid, config.patch_size, strict=True)]
        args = {"img_size": sides, "dynamic_img_size": True}
    if config.activation != settings_of_name(name)["activation"]:
        args["act_layer"] = config.activation
    return name, args
