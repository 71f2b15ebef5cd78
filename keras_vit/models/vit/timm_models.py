"""The settings of timm's ViTs, by model name. The weights of these models do not show the settings."""

import itertools
import re

from keras_vit import arguments
from keras_vit.weights.timm_config import translated

# {word for a size: number of heads}. If timm's name contains several such words, use the first.
_HEADS = {
    **{"tiny": 3, "wee": 4, "xsmall": 4, "little": 5, "small": 6, "medium": 8, "mediumd": 8, "betwixt": 10},
    **{"base": 12, "so150m2": 13, "so150m": 14, "large": 16, "so400m": 16, "huge": 16, "giant": 16, "giantopt": 16},
    **{"gigantic": 16, "7b": 32, "test": 2},
}
DEFAULT = {"activation": "gelu", "layer_norm_epsilon": 1e-6, "pooling": "token", "rotary_embedding": None}
DEFAULT["rotary_grid"] = None
_GAP, _MAP, _TANH = {"pooling": "gap"}, {"pooling": "map"}, {"activation": "gelu_tanh"}
_CLIP = {"layer_norm_epsilon": 1e-5}
_DINOV3 = {"layer_norm_epsilon": 1e-5, "rotary_embedding": "dinov3"}
_EVA02 = {"rotary_embedding": "eva02", "rotary_grid": (16, 16)}

# (names, fields that differ from `DEFAULT`). "{a,b}" in a name stands for "a" and for "b".
_ROWS = (
    ("test_vit", {}),
    ("deit_{tiny,small,base}{,_distilled}_patch16_224 deit_base{,_distilled}_patch16_384", {}),
    ("deit3_{small,base,large}_patch16_{224,384} deit3_medium_patch16_224 deit3_huge_patch14_224", {}),
    ("vit_{tiny,small,base,large}_patch16_{224,384} vit_{small,base}_patch8_224", {}),
    ("vit_{small,base,large}_patch32_{224,384} vit_{large,huge,giant,gigantic}_patch14_224", {}),
    ("vit_base_patch16_224_miil vit_small_patch16_36x1_224 flexivit_{small,base,large}", {}),
    ("vit_{small,base,large}_patch14{,_reg4}_dinov2 vit_{base,large,so400m}_patch14_reg1_tipsv2", {}),
    ("vit_tiny_r_s16_p8_{224,384} vit_{small_r26_s32,base_r50_s16,large_r50_s32}_{224,384} vit_base_r26_s32_224", {}),
    ("vit_base_patch16_plus_240 vit_base_patch32_plus_256", {"num_heads": 14}),
    ("vit_giant_patch14_{dinov2,reg4_dinov2,reg1_tipsv2}", {"num_heads": 24, "activation": "silu"}),
    ("vit_{betwixt,medium}_patch16_gap_256 vit_medium_patch16_gap_{240,384} vit_giant_patch16_gap_224", _GAP),
    ("vit_huge_patch{14_gap_224,16_gap_448} vit_so150m_patch16_reg4_gap_{256,384}", _GAP),
    ("vit_so150m2_patch16_reg1_gap_{256,384,448} vit_{little,medium,betwixt}_patch16_reg{1,4}_gap_256", _GAP),
    ("vit_base_patch16_reg4_gap_256 vit_wee_patch16_reg1_gap_256", _GAP),
    ("vit_{mediumd,betwixt}_patch16_reg4_gap_{256,384}", _GAP),
    ("vit_base_patch16_gap_224", {**_GAP, "num_heads": 16}),
    ("vit_base_patch16_siglip_{224,256,384,512} vit_large_patch16_siglip_{256,384}", _MAP),
    ("vit_so400m_patch14_siglip_{224,378,384} vit_so150m_patch16_reg4_map_256", _MAP),
    ("vit_base_patch16_siglip_gap_{224,256,384,512} vit_large_patch16_siglip_gap_{256,384}", _GAP),
    ("vit_so400m_patch14_siglip_gap_{224,378,384,448,896}", _GAP),
    ("vit_base_patch32_siglip_256 vit_large_patch16_siglip_512", {**_MAP, **_TANH}),
    ("vit_so400m_patch16_siglip_{256,384,512} vit_giantopt_patch16_siglip_{256,384}", {**_MAP, **_TANH}),
    ("vit_base_patch32_siglip_gap_256 vit_large_patch16_siglip_gap_512", {**_GAP, **_TANH}),
    ("vit_so400m_patch16_siglip_gap_{256,384,512} vit_giantopt_patch16_siglip_gap_{256,384}", {**_GAP, **_TANH}),
    ("vit_{xsmall,medium,base}_patch16_clip_224 vit_{medium,betwixt,base}_patch32_clip_224", _CLIP),
    ("vit_base_patch32_clip_{256,384,448} vit_base_patch16_clip_384 vit_{huge,gigantic}_patch14_clip_378", _CLIP),
    ("vit_{large,huge,giant,gigantic}_patch14_clip_224 vit_{large,huge}_patch14_clip_336", _CLIP),
    ("vit_base_patch16_plus_clip_240", {**_CLIP, "num_heads": 14}),
    ("vit_base_patch{16,32}_clip_quickgelu_224", {**_CLIP, "activation": "quick_gelu"}),
    ("vit_{large,huge,gigantic}_patch14_clip_quickgelu_224", {**_CLIP, "activation": "quick_gelu"}),
    ("vit_large_patch14_clip_quickgelu_336 vit_huge_patch14_clip_quickgelu_378", {**_CLIP, "activation": "quick_gelu"}),
    ("vit_{small,small_plus,base,large}_patch16_dinov3{,_qkvb} vit_tiny_patch16_dinov3_qkvb", {**_DINOV3, **_GAP}),
    ("vit_huge_plus_patch16_dinov3{,_qkvb}", {**_DINOV3, **_GAP, "num_heads": 20}),
    ("vit_7b_patch16_dinov3", {**_DINOV3, **_GAP}),
    ("vit_{small,base,large}_patch16_lingbot", _DINOV3),
    ("vit_giant_patch16_lingbot", {**_DINOV3, "num_heads": 24}),
    ("eva_large_patch14_{196,336} eva_giant_patch14_{224,336,560}", _GAP),
    ("eva_giant_patch14_clip_224", {}),
    ("eva02_{tiny,small}_patch14_{224,336} eva02_{base,large}_patch14_{224,448}", {**_EVA02, **_GAP}),
    ("eva02_{base_patch16_clip_224,large_patch14_clip_224,large_patch14_clip_336}", _EVA02),
    ("vit_{medium,mediumd,base}_patch16_rope_reg1_gap_256 vit_betwixt_patch16_rope_reg4_gap_256", {**_EVA02, **_GAP}),
    ("vit_{small,base,large}_patch16_rope{,_ape}_224", {"rotary_embedding": "axial"}),
)

# (unsupported feature, pattern of model names). The weights show only some of these features.
_MISSING = (
    ("norms after the residual branches", r"eva02_enormous_.*|vit_.*_rpn_\d+"),
    ("relative position biases", r"vit_s?relpos_.*"),
    ("blocks of parallel branches", r"vit_.*_(18x2|xp)_\d+|vit_d?pwee_.*"),
    ("differential attention", r"vit_d(wee|little)_.*"),
    ("learned frequencies of rotary positions", r"vit_.*_rope_mixed_.*"),
    ("an offset of the rotary positions and another attention pooling", r"vit_pe_.*"),
    ("RMS norms and attention with fewer heads for keys and values", r"vit_.*_sapiens2"),
    ("no norm after the blocks", r"vit_.*_radio_v\d+|vit_intern.*"),
    ("another network below the patches", r"vit_.*_(resnet\d+d(_s16)?|mci)_224"),
)

_POOLINGS = {"token": "token", "avg": "gap", "map": "map", "": "none"}
ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "silu", "relu", "tanh")
# timm's arguments for each kind of rotary positions. "eva02" has timm's defaults.
ROPES = {
    "eva02": {"rope_type": "cat", "rope_temperature": 10000, "rope_grid_indexing": "ij", "rope_rotate_half": False},
    "axial": {"rope_type": "cat", "rope_temperature": 100, "rope_grid_indexing": "xy", "rope_rotate_half": False},
    "dinov3": {"rope_type": "dinov3", "rope_temperature": 100, "rope_grid_indexing": "ij", "rope_rotate_half": True},
}
# timm arguments that only affect training, or whose values follow from the weights or the image size.
_SHOWN = re.compile(
    "img_size|patch_size|in_chans|num_classes|embed_dim|depth|mlp_ratio|qkv_bias|qkv_fused|qk_norm|proj_bias|"
    "init_values|class_token|no_embed_class|pos_embed|reg_tokens|num_reg_tokens|pre_norm|final_norm|fc_norm|"
    "use_fc_norm|use_(pre|post)_transformer_norm|use_abs_pos_emb|scale_.*|swiglu_.*|attn_type|dynamic_img_size|"
    "strict_img_size|.*drop_rate|.*drop_path_rate|weight_init|fix_init|head_init_scale|rope_(shift|jitter|rescale)_coords"
)


# {model name: config fields}.
MODELS = {
    name: {"num_heads": _HEADS[next(word for word in name.split("_") if word in _HEADS)], **DEFAULT, **row}
    for names, row in _ROWS
    for braces in names.split()
    for name in map("".join, itertools.product(*(part.split(",") for part in re.split(r"[{}]", braces))))
}


def fields_from_folder(path, config):
    """Returns the config fields from a timm folder's config.json; raises ValueError for unsupported settings."""
    name, args = config.get("architecture"), config.get("model_args")
    args = args if isinstance(args, dict) else {}
    for part, names in _MISSING:
        if re.fullmatch(names, str(name)):
            raise _unsupported(path, f"{name!r} of timm, which has {part}")
    found = dict(MODELS.get(name, {}))
    is_eva = str(name).startswith("eva") or found.get("rotary_embedding") is not None
    said = {"global_pool": config["global_pool"]} if "global_pool" in config else {}
    for key, value in {**said, **args}.items():
        # timm treats None as the default of these arguments.
        value = {"act_layer": "gelu", "norm_layer": "layernorm"}.get(key) if value is None else value
        if _SHOWN.fullmatch(key):
            continue
        if key == "num_heads":
            found["num_heads"] = value
        elif key == "global_pool":
            found["pooling"] = translated(path, key, value, _POOLINGS)
        elif key == "act_layer":
            # Keep `act_layer` too. If the folder contains this key, gated MLPs do not get their default activation.
            found[key] = found["activation"] = translated(path, key, value, {name: name for name in ACTIVATIONS})
        elif key == "norm_layer":
            found["layer_norm_epsilon"] = translated(path, key, value, {"layernorm": 1e-6})
        elif key == "ref_feat_shape":
            found["rotary_grid"] = None if value is None else arguments.pair(key, value)
        elif key != "use_rot_pos_emb" and key not in ROPES["eva02"] and value not in (None, False, 0, ""):
            raise _unsupported(path, f"model_args of {key}={value!r}")
    found = _with_rotary(path, found, args)
    if found.get("pooling") == "map" and is_eva:
        raise _unsupported(path, "the attention pooling of timm's `Eva`, which pools all tokens")
    return found


def _with_rotary(path, found, args):
    """Returns the fields `found` with the rotary positions that `args`, the `model_args` of the folder, select."""
    given = {key: args[key] for key in ROPES["eva02"] if key in args}
    kind = found.get("rotary_embedding")
    used = args.get("use_rot_pos_emb", kind is not None)
    if used and (given or kind is None):
        full = {**ROPES[kind or "eva02"], **given}
        kind = next((name for name, row in ROPES.items() if row == full), None)
        if kind is None:
            raise _unsupported(path, f"rotary positions of {full}")
    if "rotary_embedding" in found or "use_rot_pos_emb" in args:
        found["rotary_embedding"] = kind if used else None
        scaled = used and kind != "dinov3"
        found["rotary_grid"] = found.get("rotary_grid") if scaled else None
    return found


def _unsupported(path, what):
    return ValueError(f"Cannot load {path!r}: {what} is not supported.")


def is_eva_key(key):
    """Returns True if a key occurs in timm's `Eva` but not in its `VisionTransformer`."""
    return re.search(r"\.(gamma_[12]|attn\.([qv]_bias|[qkv]_proj\..*)|mlp\.fc1_[gx]\..*)$", key) is not None


def unknown_of_arrays(weights, spelled_as_eva, gated):
    """Returns {field: reason} for the config fields in which timm's models with the same arrays differ.

    `spelled_as_eva` is True if some keys occur only in timm's `Eva`. Models of this class may have rotary positions.
    """
    token, pool = "class_token/tokens" in weights, "pooling/probe" in weights
    table, norm_of_all = "position_embedding/embeddings" in weights, "fc_norm/gamma" not in weights
    plain = not gated and "block_00/layer_scale_1/gamma" not in weights
    bare = not (token or norm_of_all or "registers/tokens" in weights or "block_00/attention/qkv/bias" in weights)
    rotary = "timm's models with these arrays differ in their rotary positions"
    late = "in some of timm's models with these arrays, norms follow the residual branches, which is not supported"
    rows = (
        ("rotary_embedding", spelled_as_eva or not table, rotary),
        ("rotary_grid", spelled_as_eva or not table, rotary),
        ("layer_norm_epsilon", not table, "timm's models with these arrays use 1e-5 or 1e-6"),
        (
            "pooling",
            not table and token and norm_of_all,
            "timm's models with these arrays pool the class token or the mean of the patches",
        ),
        ("pooling", pool and token, "timm's models with these arrays have different attention poolings"),
        ("num_heads", norm_of_all and not (token or pool), "timm's models with these arrays differ in num_heads"),
        (
            "activation",
            "norm_before_blocks/gamma" in weights or (not token and norm_of_all),
            "timm's models with these arrays use different kinds of GELU",
        ),
        ("qkv_bias", bare, late),
        ("key_bias", spelled_as_eva and plain and token and norm_of_all, late),
    )
    return {field: reason for field, applies, reason in rows if applies}
