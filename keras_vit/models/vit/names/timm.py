"""The names of weights in timm's state dicts of `VisionTransformer` and `Eva`, and in DeiT's own .pth files."""

import dataclasses

from keras_vit.images.constants import IMAGENET_PREPROCESSING
from keras_vit.weights import codecs
from keras_vit.weights.source import BLOCK, Name, Source, block, dense, gated, norm, pooling, resnet

_TRANSPOSED = codecs.Transposed()


_BLOCK = "blocks.{block}."
_BACKBONE = "patch_embed.backbone."
# In timm's attention pooling, one layer computes the keys and the values.
_POOLING_PARTS = [
    ("query", "attn_pool.q.weight", "attn_pool.q.bias", 0, 1),
    ("key", "attn_pool.kv.weight", "attn_pool.kv.bias", 0, 2),
    ("value", "attn_pool.kv.weight", "attn_pool.kv.bias", 1, 2),
]

# GAMMAS are the names of layer scales in timm's `Eva` and in DeiT III's own files. QUERY_VALUE_BIASES are the names of
# the biases in `Eva` if one layer computes queries, keys and values.
GAMMAS = {BLOCK + f"layer_scale_{i}/gamma": Name((f"{_BLOCK}gamma_{i}",)) for i in (1, 2)}
QUERY_VALUE_BIASES = {
    BLOCK + "attention/qkv/bias": Name((_BLOCK + "attn.q_bias", _BLOCK + "attn.v_bias"), codecs.QueryValue())
}
# `Eva` uses SPLIT_QKV and SPLIT_BIASES if three layers compute queries, keys and values. It uses SPLIT_GATES if the
# gate of a gated MLP has its own layer.
SPLIT_QKV = {
    BLOCK + "attention/qkv/kernel": Name(
        tuple(f"{_BLOCK}attn.{name}_proj.weight" for name in "qkv"), codecs.Fused(_TRANSPOSED)
    )
}
SPLIT_BIASES = {
    BLOCK + "attention/qkv/bias": Name((_BLOCK + "attn.q_proj.bias", _BLOCK + "attn.v_proj.bias"), codecs.QueryValue())
}
SPLIT_GATES = gated(BLOCK + "mlp/dense_1", _BLOCK + "mlp.fc1_g", _BLOCK + "mlp.fc1_x")

TIMM = Source(
    "timm",
    {
        **dense("patch_embedding", "patch_embed.proj", codecs.TORCH_CONV),
        "class_token/tokens": Name(("cls_token",)),
        "distillation_token/tokens": Name(("dist_token",)),
        "registers/tokens": Name(("reg_token",)),
        "position_embedding/embeddings": Name(("pos_embed",)),
        **norm("norm_before_blocks", "norm_pre"),
        **block(_BLOCK, "norm1", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2", ("ls1.gamma", "ls2.gamma")),
        **dense(BLOCK + "attention/qkv", _BLOCK + "attn.qkv"),
        **norm(BLOCK + "attention/query_norm", _BLOCK + "attn.q_norm"),
        **norm(BLOCK + "attention/key_norm", _BLOCK + "attn.k_norm"),
        **norm(BLOCK + "attention/norm", _BLOCK + "attn.norm"),
        **norm(BLOCK + "mlp/norm", _BLOCK + "mlp.norm"),
        **norm("norm", "norm"),
        **norm("fc_norm", "fc_norm"),
        **pooling("attn_pool.latent", _POOLING_PARTS, "attn_pool.proj", "attn_pool.norm", "attn_pool.mlp"),
        **dense("pre_logits", "pre_logits.fc"),
        **dense("head", "head"),
        **dense("head_dist", "head_dist"),
        **resnet(f"{_BACKBONE}stem.conv", f"{_BACKBONE}stages.{{stage0}}.blocks.{{unit0}}.", (1, 2, 3, "proj")),
        **norm("root_norm", f"{_BACKBONE}stem.norm"),
    },
    resnet_epsilons="timm",
    position_interpolation="bicubic_antialias",
    # A ResNet without stages consists only of a stem, so its keys lack "stem.".
    aliases=[(r"^patch_embed\.backbone\.(?=(conv|norm)\.)", f"{_BACKBONE}stem.")],
    refused=[
        (
            r"patch_embed\.backbone\.(?!stem\.(conv|norm)\.|stages\.)",
            "a backbone that is no ResNet with group normalization",
        ),
        (r".*\.stages\.[4-9]", "a ResNet of more than four stages"),
    ],
    spellings={
        "gammas": GAMMAS,
        "query and value biases": QUERY_VALUE_BIASES,
        "split qkv": SPLIT_QKV,
        "split biases": SPLIT_BIASES,
        "split gates": SPLIT_GATES,
    },
    gated_activation="silu",
)

DEIT = dataclasses.replace(TIMM, name="deit", position_interpolation="bicubic", preprocessing=IMAGENET_PREPROCESSING)

# timm's names for the stem of a hybrid whose ResNet has no stages.
TIMM_STEM = dataclasses.replace(
    TIMM,
    names={
        **TIMM.names,
        "root_conv/kernel": Name(("patch_embed.backbone.conv.weight",), codecs.TORCH_CONV),
        **norm("root_norm", "patch_embed.backbone.norm"),
    },
)
