"""The names of weights in original files of CLIP, DINO, DINOv2, DINOv3, MAE, I-JEPA, EVA-02 and OpenCLIP.

Some keys of these files also occur in files of timm or transformers. The rules of this module distinguish the
original files from the files of these two libraries.
"""

import dataclasses
import re

from keras_vit.images.constants import CLIP_PREPROCESSING, DINOV3_PREPROCESSING, IMAGENET_PREPROCESSING
from keras_vit.models.vit.names.official import BIG_VISION, OFFICIAL
from keras_vit.models.vit.names.timm import DEIT, QUERY_VALUE_BIASES, SPLIT_QKV, TIMM
from keras_vit.weights import codecs
from keras_vit.weights.source import BLOCK, Name, Source, block, gated, norm

_BLOCK = "blocks.{block}."
_QKV_BIAS = BLOCK + "attention/qkv/bias"
# The first layer of a gated MLP, stored as two layers.
_W1_W2 = gated(BLOCK + "mlp/dense_1", _BLOCK + "mlp.w1", _BLOCK + "mlp.w2")
# The aliases of the fused first layer, and of the last layer, of a gated MLP.
_GATED = [(r"\.mlp\.w12\.", ".mlp.fc1."), (r"\.mlp\.w3\.", ".mlp.fc2.")]
# Training files have key prefixes, pre-training heads, and tokens that replace masked patches.
_PREFIXES = ("module.", "backbone.")
_PRETRAINING = r"(module\.)?(dino_head|ibot_head|head\.(mlp|last_layer))\.|(.*\.)?mask_token$"

DINO = dataclasses.replace(
    TIMM,
    name="dino",
    position_interpolation="bicubic_offset",
    preprocessing=IMAGENET_PREPROCESSING,
    ignored=_PRETRAINING,
    prefixes=_PREFIXES,
    head_dim=64,
)

DINOV2_ORIGINAL = dataclasses.replace(
    DINO,
    name="dinov2_original",
    aliases=[
        *_GATED,
        (r"^register_tokens$", "reg_token"),
        # Blocks may be stored in chunks, for training on many devices.
        (r"^blocks\.\d+\.(?=\d+\.)", "blocks."),
        (r"^linear_head\.", "head."),
    ],
    gated_activation="silu",
)

DINOV3_ORIGINAL = dataclasses.replace(
    DINO,
    name="dinov3_original",
    layer_norm_epsilon=1e-5,
    preprocessing=DINOV3_PREPROCESSING,
    aliases=[*_GATED, (r"^storage_tokens$", "reg_token")],
    # Ignore the local norm, which only training uses, and the periods of rotary positions, which are computed.
    ignored=_PRETRAINING + r"|(.*\.)?(local_cls_norm\.|rope_embed\.periods$)",
    spellings={
        "gated_mlp": _W1_W2,
        "masked": {_QKV_BIAS: Name((_BLOCK + "attn.qkv.bias", _BLOCK + "attn.qkv.bias_mask"), codecs.Masked())},
    },
    gated_activation="silu",
    head_dim=None,
)

MAE = dataclasses.replace(DEIT, name="mae", ignored=r"(module\.)?(decoder_|mask_token$)")

IJEPA = dataclasses.replace(MAE, name="ijepa", ignored=r"(?!)")

EVA02 = dataclasses.replace(
    DEIT,
    name="eva02",
    names={
        **TIMM.names,
        **norm(BLOCK + "attention/norm", _BLOCK + "attn.inner_attn_ln"),
        **norm(BLOCK + "mlp/norm", _BLOCK + "mlp.ffn_ln"),
        **QUERY_VALUE_BIASES,
    },
    preprocessing=CLIP_PREPROCESSING,
    aliases=_GATED,
    ignored=r"(module\.)?(mask_token$|lm_head\.|(.*\.)?rope\.freqs_(cos|sin)$)",
    spellings={"gated_mlp": _W1_W2, "split": SPLIT_QKV},
    gated_activation="silu",
)

_CLIP_BLOCK = "visual.transformer.resblocks.{block}."
# The keys of the text tower, of the loss, and of scalars such as input_resolution in OpenAI's files.
_NOT_OF_THE_TOWER = (
    r"(module\.)?(transformer|token_embedding|positional_embedding|ln_final|text_projection|text|logit_scale|"
    r"logit_bias|attn_mask|input_resolution|context_length|vocab_size)(\.|$)"
)

OPENAI_CLIP = Source(
    "openai_clip",
    {
        "patch_embedding/kernel": Name(("visual.conv1.weight",), codecs.TORCH_CONV),
        "class_token/tokens": Name(("visual.class_embedding",), codecs.Squeeze(without=2)),
        "position_embedding/embeddings": Name(("visual.positional_embedding",), codecs.Squeeze(without=1)),
        **norm("norm_before_blocks", "visual.ln_pre"),
        **block(_CLIP_BLOCK, "ln_1", "attn.out_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"),
        BLOCK + "attention/qkv/kernel": Name((_CLIP_BLOCK + "attn.in_proj_weight",), codecs.Transposed()),
        _QKV_BIAS: Name((_CLIP_BLOCK + "attn.in_proj_bias",)),
        **norm("norm", "visual.ln_post"),
        "projection/kernel": Name(("visual.proj",)),
    },
    activation="quick_gelu",
    layer_norm_epsilon=1e-5,
    position_interpolation="bicubic_antialias",
    preprocessing=CLIP_PREPROCESSING,
    ignored=_NOT_OF_THE_TOWER,
)

# OpenCLIP's files have the same keys as OpenAI's CLIP. Some OpenCLIP models use the exact GELU, others the quick GELU.
OPEN_CLIP = dataclasses.replace(OPENAI_CLIP, name="open_clip", activation=None)

# The files of OpenCLIP models that have an image tower from timm.
OPEN_CLIP_TIMM = dataclasses.replace(
    TIMM,
    name="open_clip_timm",
    names={**TIMM.names, "projection/kernel": Name(("visual.head.proj.weight",), codecs.Transposed())},
    activation=None,
    layer_norm_epsilon=None,
    ignored=_NOT_OF_THE_TOWER,
    prefixes=("visual.trunk.",),
)

ORIGINALS = (DINO, DINOV2_ORIGINAL, DINOV3_ORIGINAL, MAE, IJEPA, EVA02, OPENAI_CLIP, OPEN_CLIP)

# {key pattern: source}. The source of a file is the first one that meets two conditions: its pattern occurs in the
# file's keys, and the file contains the source's first layer.
_BY_KEYS = {
    r"(^|\.)(storage_tokens|rope_embed\.periods)$": DINOV3_ORIGINAL,
    # DINOv2's own files contain the mask token of pre-training. timm's files of DINOv2 do not.
    r"(^|\.)(register_tokens$|mask_token$(?s:.*)\.ls1\.gamma$)": DINOV2_ORIGINAL,
    r"rope\.freqs_cos$|\.mlp\.(w1|w12|ffn_ln)\.": EVA02,
    r"^(module\.)?decoder_pred\.": MAE,
    r"^(module\.)?visual\.trunk\.": OPEN_CLIP_TIMM,
    r"^input_resolution$": OPENAI_CLIP,
    r"^(module\.)?visual\.conv1\.": OPEN_CLIP,
}
_BY_WRAPPERS = {"teacher": DINO, "student": DINO, "target_encoder": IJEPA, "encoder": IJEPA}


def recognise(keys, container, facts):
    """Returns the `Source` of a file, or None. Distinguishes sources whose first layer has the same key."""
    if OFFICIAL.matches(keys) or BIG_VISION.matches(keys):
        # In both sources, the patch embedding has the same key, so compare other keys and the prefix of the keys.
        old = any(key.endswith("posembed_input/pos_embedding") for key in keys)
        stacked = any("encoderblock/" in key for key in keys)
        prefixed = any(key.startswith("params/") or key.endswith("MAPHead_0/probe") for key in keys)
        return BIG_VISION if "pos_embedding" in keys or prefixed or (stacked and not old) else OFFICIAL
    text = "\n".join(sorted(keys, key=lambda key: key.endswith("ls1.gamma")))
    for pattern, source in _BY_KEYS.items():
        if re.search(pattern, text, re.MULTILINE) and source.matches(keys):
            return source
    wrapper = facts.get("wrapper")
    if wrapper in _BY_WRAPPERS and _BY_WRAPPERS[wrapper].matches(keys):
        return _BY_WRAPPERS[wrapper]
    # DeiT's files have a head and no `fc_norm`. MAE's files have no head, or a head and an `fc_norm` (fine-tuned).
    of_mae = not any(key.startswith("head.") for key in keys) or "fc_norm.weight" in keys
    if wrapper in ("model", "model_ema") and of_mae and MAE.matches(keys):
        return MAE
    backbone = any(key.startswith("patch_embed.backbone.") for key in keys)
    if not backbone and not TIMM.matches(keys):
        return None
    return DEIT if container == "pth" and wrapper in ("model", "model_ema") and not backbone else TIMM
