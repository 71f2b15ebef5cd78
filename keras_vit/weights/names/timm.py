"""timm state dicts, of `VisionTransformer` and of `Eva`, including DeiT's own .pth files."""

import dataclasses

from keras_vit.images.constants import IMAGENET_PREPROCESSING
from keras_vit.weights import codecs
from keras_vit.weights.names.official import BLOCK, UNIT
from keras_vit.weights.names.source import Name, Source

_TRANSPOSED = codecs.Transposed()


def dense(ours, theirs, codec=_TRANSPOSED):
    """Returns the rows of a PyTorch dense layer, or of a convolution with another codec."""
    return {f"{ours}/kernel": Name((f"{theirs}.weight",), codec), f"{ours}/bias": Name((f"{theirs}.bias",))}


def norm(ours, theirs):
    """Returns the rows of a PyTorch norm."""
    return {f"{ours}/gamma": Name((f"{theirs}.weight",)), f"{ours}/beta": Name((f"{theirs}.bias",))}


def gated(first, gate, up):
    """Returns the rows of a gated MLP whose first layer is two layers in the file."""
    return {
        f"{first}/kernel": Name((f"{gate}.weight", f"{up}.weight"), codecs.Fused(_TRANSPOSED, 2)),
        f"{first}/bias": Name((f"{gate}.bias", f"{up}.bias"), codecs.Fused(codecs.Same(), 2)),
    }


def pooling(probe, parts, out, norm_, mlp):
    """Returns the rows of attention pooling; `parts` are (layer, kernel, bias, part, count) per projection."""
    rows = {"pooling/probe": Name((probe,))}
    for ours, kernel, bias, part, count in parts:
        row = codecs.Part(_TRANSPOSED, part, count)
        rows[f"pooling/attention/{ours}/kernel"] = Name((kernel,), row)
        rows[f"pooling/attention/{ours}/bias"] = Name((bias,), codecs.Part(codecs.Flat(), part, count))
    return {
        **rows,
        **dense("pooling/attention/attention_output", out, codecs.Transposed(inputs=2)),
        **norm("pooling/norm", norm_),
        **dense("pooling/mlp/dense_1", f"{mlp}.fc1"),
        **dense("pooling/mlp/dense_2", f"{mlp}.fc2"),
    }


def resnet(stem, unit, norms):
    """Returns the rows of a ResNet, given its first convolution, a unit and the norms of a unit."""
    rows = {"root_conv/kernel": Name((f"{stem}.weight",), codecs.TORCH_CONV)}
    for i in (1, 2, 3, "proj"):
        module = f"{unit}downsample." if i == "proj" else unit
        number = "" if i == "proj" else i
        rows[f"{UNIT}conv_{i}/kernel"] = Name((f"{module}conv{number}.weight",), codecs.TORCH_CONV)
        if i in norms:
            rows |= norm(f"{UNIT}norm_{i}", f"{module}norm{number}")
    return rows


_BLOCK = "blocks.{block}."
_BACKBONE = "patch_embed.backbone."
# timm projects keys and values together.
_POOLING_PARTS = [
    ("query", "attn_pool.q.weight", "attn_pool.q.bias", 0, 1),
    ("key", "attn_pool.kv.weight", "attn_pool.kv.bias", 0, 2),
    ("value", "attn_pool.kv.weight", "attn_pool.kv.bias", 1, 2),
]

# Spellings of `Eva`; DeiT III's own files have its layer scales too. The biases of fused queries, keys and values:
GAMMAS = {BLOCK + f"layer_scale_{i}/gamma": Name((f"{_BLOCK}gamma_{i}",)) for i in (1, 2)}
QUERY_VALUE_BIASES = {
    BLOCK + "attention/qkv/bias": Name((_BLOCK + "attn.q_bias", _BLOCK + "attn.v_bias"), codecs.QueryValue())
}
# Queries, keys and values as three layers, and the gate of a gated MLP as a layer of its own.
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
        **norm(BLOCK + "norm_1", _BLOCK + "norm1"),
        **dense(BLOCK + "attention/qkv", _BLOCK + "attn.qkv"),
        **norm(BLOCK + "attention/query_norm", _BLOCK + "attn.q_norm"),
        **norm(BLOCK + "attention/key_norm", _BLOCK + "attn.k_norm"),
        **norm(BLOCK + "attention/norm", _BLOCK + "attn.norm"),
        **dense(BLOCK + "attention/out", _BLOCK + "attn.proj"),
        BLOCK + "layer_scale_1/gamma": Name((_BLOCK + "ls1.gamma",)),
        **norm(BLOCK + "norm_2", _BLOCK + "norm2"),
        **dense(BLOCK + "mlp/dense_1", _BLOCK + "mlp.fc1"),
        **norm(BLOCK + "mlp/norm", _BLOCK + "mlp.norm"),
        **dense(BLOCK + "mlp/dense_2", _BLOCK + "mlp.fc2"),
        BLOCK + "layer_scale_2/gamma": Name((_BLOCK + "ls2.gamma",)),
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
    # A ResNet without stages is only a stem.
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
