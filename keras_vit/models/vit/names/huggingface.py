"""The names of weights of ViT, DeiT, I-JEPA, DINOv2, DINOv3, SigLIP and CLIP in Hugging Face transformers."""

from keras_vit.images.constants import (
    CLIP_PREPROCESSING,
    DINOV3_PREPROCESSING,
    IMAGENET_PREPROCESSING,
    OFFICIAL_PREPROCESSING,
)
from keras_vit.weights import codecs
from keras_vit.weights.source import BLOCK, Name, Source, block, dense, gated, norm, pooling

_BLOCK, _OUT = "encoder.layer.{block}.", "attention.output.dense"
_SCALES = ("layer_scale1.lambda1", "layer_scale2.lambda1")


def _qkv(queries):
    return {
        BLOCK + "attention/qkv/kernel": Name(tuple(f"{q}.weight" for q in queries), codecs.Fused(codecs.Transposed())),
        BLOCK + "attention/qkv/bias": Name(tuple(f"{q}.bias" for q in queries), codecs.Fused(codecs.Identity())),
    }


# Names shared by ViT, DeiT and DINOv2.
_COMMON = {
    **dense("patch_embedding", "embeddings.patch_embeddings.projection", codecs.TORCH_CONV),
    "class_token/tokens": Name(("embeddings.cls_token",)),
    "position_embedding/embeddings": Name(("embeddings.position_embeddings",)),
    **_qkv([f"{_BLOCK}attention.attention.{name}" for name in ("query", "key", "value")]),
    **norm("norm", "layernorm"),
    **dense("head", "classifier"),
}

HUGGINGFACE = Source(
    "huggingface",
    {
        **_COMMON,
        "distillation_token/tokens": Name(("embeddings.distillation_token",)),
        **block(_BLOCK, "layernorm_before", _OUT, "layernorm_after", "intermediate.dense", "output.dense"),
        # The pooler is a dense tanh layer on the class token, like pre_logits.
        **dense("pre_logits", "pooler.dense"),
        **dense("head_dist", "distillation_classifier"),
    },
    mark=r".*\.layernorm_before\.",
    model_types=("vit", "deit", "vit_mae", "vit_msn", "ijepa"),
    layer_norm_epsilon=1e-12,
    position_interpolation="bicubic",
    aliases=[(r"^cls_classifier\.", "classifier.")],
    # Mask tokens and decoders are only needed for pre-training with masked images.
    ignored=r"(vit\.|deit\.|ijepa\.)?embeddings\.mask_token$|decoder\.",
    prefixes=("vit.", "deit.", "ijepa."),
)

DINOV2 = Source(
    "dinov2",
    {
        **_COMMON,
        "registers/tokens": Name(("embeddings.register_tokens",)),
        **block(_BLOCK, "norm1", _OUT, "norm2", "mlp.fc1", "mlp.fc2", _SCALES),
    },
    mark=r".*\.layer_scale1\.lambda1$",
    model_types=("dinov2", "dinov2_with_registers"),
    position_interpolation="bicubic",
    preprocessing=IMAGENET_PREPROCESSING,
    ignored=r"(dinov2\.|dinov2_with_registers\.)?embeddings\.mask_token$",
    prefixes=("dinov2.", "dinov2_with_registers."),
    spellings={
        "gated_mlp": {
            **dense(BLOCK + "mlp/dense_1", _BLOCK + "mlp.weights_in"),
            **dense(BLOCK + "mlp/dense_2", _BLOCK + "mlp.weights_out"),
        }
    },
    gated_activation="silu",
)

_DINOV3_BLOCK = "layer.{block}."
_DINOV3_QKV = [f"{_DINOV3_BLOCK}attention.{name}_proj" for name in "qkv"]

DINOV3 = Source(
    "dinov3",
    {
        **dense("patch_embedding", "embeddings.patch_embeddings", codecs.TORCH_CONV),
        "class_token/tokens": Name(("embeddings.cls_token",)),
        "registers/tokens": Name(("embeddings.register_tokens",)),
        **block(_DINOV3_BLOCK, "norm1", "attention.o_proj", "norm2", "mlp.up_proj", "mlp.down_proj", _SCALES),
        **_qkv(_DINOV3_QKV),
        BLOCK + "attention/qkv/bias": Name((f"{_DINOV3_QKV[0]}.bias", f"{_DINOV3_QKV[2]}.bias"), codecs.QueryValue()),
        **norm("norm", "norm"),
    },
    model_types=("dinov3_vit",),
    layer_norm_epsilon=1e-5,
    preprocessing=DINOV3_PREPROCESSING,
    aliases=[(r"^model\.layer\.", "layer.")],
    ignored=r"embeddings\.mask_token$",
    spellings={
        "gated_mlp": gated(BLOCK + "mlp/dense_1", _DINOV3_BLOCK + "mlp.gate_proj", _DINOV3_BLOCK + "mlp.up_proj"),
        "key_bias": {
            BLOCK + "attention/qkv/bias": Name(tuple(f"{q}.bias" for q in _DINOV3_QKV), codecs.Fused(codecs.Identity()))
        },
    },
)

_SIGLIP_BLOCK = "encoder.layers.{block}."
# SigLIP's pooling uses PyTorch's MultiheadAttention, which stores the weights of queries, keys and values in one array.
_POOLING_PARTS = [
    (name, "head.attention.in_proj_weight", "head.attention.in_proj_bias", i, 3)
    for i, name in enumerate(("query", "key", "value"))
]

# Names shared by SigLIP and CLIP.
_TOWER = {
    **dense("patch_embedding", "embeddings.patch_embedding", codecs.TORCH_CONV),
    "position_embedding/embeddings": Name(("embeddings.position_embedding.weight",), codecs.Squeeze(without=1)),
    **block(_SIGLIP_BLOCK, "layer_norm1", "self_attn.out_proj", "layer_norm2", "mlp.fc1", "mlp.fc2"),
    **_qkv([f"{_SIGLIP_BLOCK}self_attn.{name}_proj" for name in "qkv"]),
    **norm("norm", "post_layernorm"),
}
# The keys of the text tower, of the loss, and of the position numbers that older versions stored.
_NOT_OF_THE_TOWER = r"text_model\.|text_projection\.|logit_(scale|bias)$|(vision_model\.)?embeddings\.position_ids$"

SIGLIP = Source(
    "siglip",
    {
        **_TOWER,
        **pooling("head.probe", _POOLING_PARTS, "head.attention.out_proj", "head.layernorm", "head.mlp"),
        **dense("head", "classifier"),
    },
    model_types=("siglip", "siglip_vision_model"),
    activation="gelu_tanh",
    position_interpolation="bicubic",
    preprocessing={**OFFICIAL_PREPROCESSING, "interpolation": "bicubic"},
    ignored=_NOT_OF_THE_TOWER,
    prefixes=("vision_model.",),
)

CLIP = Source(
    "clip",
    {
        **_TOWER,
        "class_token/tokens": Name(("embeddings.class_embedding",), codecs.Squeeze(without=2)),
        **norm("norm_before_blocks", "pre_layrnorm"),
        "projection/kernel": Name(("visual_projection.weight",), codecs.Transposed()),
    },
    mark=r".*pre_layrnorm\.weight$",
    model_types=("clip", "clip_vision_model"),
    activation="quick_gelu",
    layer_norm_epsilon=1e-5,
    position_interpolation="bicubic",
    preprocessing=CLIP_PREPROCESSING,
    ignored=_NOT_OF_THE_TOWER,
    prefixes=("vision_model.",),
)

# CLIP precedes SigLIP, because only CLIP has a `mark`. A file of CLIP would also match SigLIP.
TRANSFORMERS = (HUGGINGFACE, DINOV2, DINOV3, CLIP, SIGLIP)
