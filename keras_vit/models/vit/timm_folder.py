"""Folders and state dicts of ViTs that timm loads."""

import dataclasses
import math

from keras_vit.models.vit.names import timm as names
from keras_vit.models.vit.timm_models import ROPES
from keras_vit.weights import timm_config

_POOLINGS = {"token": "token", "gap": "avg", "map": "map"}
# A hybrid by its ResNet.
_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
# The word for a size, (hidden_dim, num_layers, num_heads), in timm's names.
_WORDS = {(192, 12, 3): "tiny", (384, 12, 6): "small", (768, 12, 12): "base", (1024, 24, 16): "large"}


def of_eva(config):
    """Returns whether timm's `Eva`, not its `VisionTransformer`, computes the model of a `ViTConfig`."""
    return config.rotary_embedding is not None or (config.qkv_bias and not config.key_bias)


def source_for(source, config):
    """Returns a timm `Source` with the spellings of the class that computes the model of a `ViTConfig`."""
    rows = dict(source.names)
    if of_eva(config):
        rows |= names.GAMMAS
        if not config.key_bias and config.mlp_norm:
            rows |= {**names.SPLIT_QKV, **names.SPLIT_BIASES}
        elif not config.key_bias:
            rows |= names.QUERY_VALUE_BIASES
        if _splits_gates(config):
            rows |= names.SPLIT_GATES
    return dataclasses.replace(source, names=rows)


def _splits_gates(config):
    return config.gated_mlp and (config.mlp_norm or config.rotary_embedding == "dinov3")


def settings_of(config):
    """Returns the settings of timm's code for the weights of a `ViTConfig`: where it has several, the config's own."""
    activations = ["silu"] if config.gated_mlp else ["gelu"]
    if config.norm_before_blocks and not of_eva(config):
        activations += ["quick_gelu"]
    if not (config.class_token or config.norm_after_pooling or config.gated_mlp or of_eva(config)):
        # SigLIP's.
        activations += ["gelu_tanh"]
    epsilon = 1e-5 if config.norm_before_blocks or config.rotary_embedding == "dinov3" else 1e-6
    chosen = config.activation if config.activation in activations else activations[0]
    return {"activation": chosen, "layer_norm_epsilon": epsilon}


def unwritten(config):
    """Yields what timm's code cannot compute of a `ViTConfig`."""
    if config.pooling == "token_gap":
        yield 'pooling="token_gap"'
    if config.patch_bias == config.norm_before_blocks:
        yield f"patch_bias={config.patch_bias} with norm_before_blocks={config.norm_before_blocks}"
    if of_eva(config) and config.distillation_token:
        yield "rotary positions, or keys without bias, beside a distillation token"
    if of_eva(config) and config.pooling == "map":
        yield 'rotary positions, or keys without bias, and pooling="map"'


def unwritten_in_folder(config):
    """Yields what the config.json of a folder cannot say of a config."""
    if config.stages is not None and _hybrid_name(config) is None:
        yield f"a ResNet of stages {config.stages} and width factor {config.width_factor:g}, for which timm has no name"
    if config.layer_norm_epsilon not in (1e-5, 1e-6):
        yield f"layer_norm_epsilon={config.layer_norm_epsilon}"
    activations = ["silu"] if config.gated_mlp else ["gelu"]
    if not of_eva(config) and not config.gated_mlp:
        activations += ["gelu_tanh", "quick_gelu", "silu", "relu", "tanh"]
    if config.activation not in activations:
        yield f"activation={config.activation!r}, expected one of {activations}"
    resized = config.any_size and config.position_embedding == "learned"
    if resized and config.position_interpolation != "bicubic_antialias":
        yield f"position_interpolation={config.position_interpolation!r}"
    if config.distillation_token and config.num_registers:
        yield "registers beside a distillation token"
    # Each of these decides the architecture's name.
    special = config.distillation_token + (config.gated_mlp and not of_eva(config)) + (config.stages is not None)
    if special + (config.layer_norm_epsilon == 1e-5 and not of_eva(config)) > 1:
        yield "two of a ResNet, a gated MLP, a distillation token and layer_norm_epsilon=1e-5"
    if config.stages is not None and of_eva(config):
        yield "a ResNet below rotary positions, or keys without bias"


def config_json(config, arrays, facts):
    """Returns the contents of config.json."""
    name, args = (_eva if of_eva(config) else _vision_transformer)(config)
    pool = _POOLINGS[config.pooling]
    image_size = _image_size(config)
    args |= {
        "img_size": image_size,
        "patch_size": list(config.patch_size),
        "embed_dim": config.hidden_dim,
        "depth": config.num_layers,
        "num_heads": config.num_heads,
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "init_values": None if config.layer_scale_init is None else 1e-5,
        "class_token": config.class_token,
        "no_embed_class": _no_embed_class(config, arrays),
        "dynamic_img_size": config.any_size,
        "global_pool": pool,
    }
    first_conv = "patch_embed.proj" if config.stages is None else "patch_embed.backbone.stem.conv"
    heads = ["head", "head_dist"] if config.distillation_token else "head"
    ends, sizes = (first_conv, heads), {"num_features": config.hidden_dim, "image_size": image_size}
    return timm_config.config_json(name, config, facts, ends, args, pool=pool, **sizes)


def _image_size(config):
    if not config.any_size:
        return list(config.image_size)
    return [rows * patch for rows, patch in zip(config.grid, config.patch_size, strict=True)]


def _no_embed_class(config, arrays):
    if "pos_embed" not in arrays:
        return False
    return arrays["pos_embed"].shape[1] == math.prod(config.grid) and config.num_prefix_tokens > 0


def _vision_transformer(config):
    """Returns the name and the arguments of a `VisionTransformer`."""
    # All but the first set what no argument in JSON can: the ResNet, the class, the kind of MLP and the epsilon.
    word = _WORDS.get((config.hidden_dim, config.num_layers, config.num_heads), "base")
    name = f"vit_{word}_patch16_224"
    if config.stages is not None:
        name = _hybrid_name(config)
    elif config.distillation_token:
        name = "deit_base_distilled_patch16_224"
    elif config.gated_mlp:
        name = "vit_giant_patch14_dinov2"
    elif config.layer_norm_epsilon == 1e-5:
        name = "vit_base_patch16_clip_224"
    return name, {
        "mlp_ratio": _ratio(config.hidden_dim, config.mlp_dim * (2 if config.gated_mlp else 1)),
        "act_layer": config.activation,
        "pos_embed": "learn" if config.position_embedding == "learned" else "none",
        "reg_tokens": config.num_registers,
        "pre_norm": config.norm_before_blocks,
        "fc_norm": config.norm_after_pooling,
        "scale_attn_norm": config.attention_norm,
        "scale_mlp_norm": config.mlp_norm,
    }


def _eva(config):
    """Returns the name and the arguments of an `Eva`."""
    # The epsilon is no argument in JSON.
    name = "eva02_base_patch14_224" if config.layer_norm_epsilon == 1e-6 else "vit_base_patch16_dinov3"
    return name, {
        "mlp_ratio": _ratio(config.hidden_dim, config.mlp_dim),
        "attn_type": "rope" if config.key_bias else "eva",
        "qkv_fused": config.key_bias or not config.mlp_norm,
        "num_reg_tokens": config.num_registers,
        "swiglu_mlp": config.gated_mlp,
        # 1 splits the gate and changes no width.
        "swiglu_align_to": int(_splits_gates(config)),
        "scale_mlp": config.mlp_norm,
        "scale_attn_inner": config.attention_norm,
        "use_abs_pos_emb": config.position_embedding == "learned",
        "use_rot_pos_emb": config.rotary_embedding is not None,
        **ROPES.get(config.rotary_embedding, {}),
        "ref_feat_shape": None if config.rotary_grid is None else list(config.rotary_grid),
        "use_pre_transformer_norm": config.norm_before_blocks,
        "use_post_transformer_norm": not config.norm_after_pooling,
        "use_fc_norm": config.norm_after_pooling,
    }


def _hybrid_name(config):
    """Returns the name of timm's hybrid with the ResNet of a config, or None."""
    return _HYBRIDS.get(config.stages) if config.width_factor == 1 else None


def _ratio(width, hidden):
    """Returns the number that timm multiplies a width by to get `hidden`, rounded down."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)
