"""timm state dicts, including DeiT's own .pth files."""

import dataclasses

from keras_vit.weights import codecs
from keras_vit.weights.names.official import BLOCK, UNIT
from keras_vit.weights.names.source import IMAGENET_PREPROCESSING, Name, Source

_TRANSPOSED = codecs.Transposed()


def dense(ours, theirs, codec=_TRANSPOSED):
    """Returns the rows of a PyTorch dense layer, or of a convolution with another codec."""
    return {f"{ours}/kernel": Name((f"{theirs}.weight",), codec), f"{ours}/bias": Name((f"{theirs}.bias",))}


def norm(ours, theirs):
    """Returns the rows of a PyTorch norm."""
    return {f"{ours}/gamma": Name((f"{theirs}.weight",)), f"{ours}/beta": Name((f"{theirs}.bias",))}


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
    rows = {"root_conv/kernel": Name((f"{stem}.weight",), codecs.TorchConv())}
    for i in (1, 2, 3, "proj"):
        module = f"{unit}downsample." if i == "proj" else unit
        number = "" if i == "proj" else i
        rows[f"{UNIT}conv_{i}/kernel"] = Name((f"{module}conv{number}.weight",), codecs.TorchConv())
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

TIMM = Source(
    "timm",
    {
        **dense("patch_embedding", "patch_embed.proj", codecs.TorchConv()),
        "class_token/tokens": Name(("cls_token",)),
        "distillation_token/tokens": Name(("dist_token",)),
        "registers/tokens": Name(("reg_token",)),
        "position_embedding/embeddings": Name(("pos_embed",)),
        **norm(BLOCK + "norm_1", _BLOCK + "norm1"),
        **dense(BLOCK + "attention/qkv", _BLOCK + "attn.qkv"),
        **norm(BLOCK + "attention/query_norm", _BLOCK + "attn.q_norm"),
        **norm(BLOCK + "attention/key_norm", _BLOCK + "attn.k_norm"),
        **dense(BLOCK + "attention/out", _BLOCK + "attn.proj"),
        BLOCK + "layer_scale_1/gamma": Name((_BLOCK + "ls1.gamma",)),
        **norm(BLOCK + "norm_2", _BLOCK + "norm2"),
        **dense(BLOCK + "mlp/dense_1", _BLOCK + "mlp.fc1"),
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
    # DeiT III's own files name the layer scales differently; a ResNet without stages is only a stem.
    aliases=[
        (r"(?<=\.)gamma_([12])$", r"ls\1.gamma"),
        (r"^patch_embed\.backbone\.(?=(conv|norm)\.)", f"{_BACKBONE}stem."),
    ],
    refused=[
        (
            r"patch_embed\.backbone\.(?!stem\.(conv|norm)\.|stages\.)",
            "a backbone that is no ResNet with group normalization",
        ),
        (r".*\.stages\.[4-9]", "a ResNet of more than four stages"),
    ],
    prefixes=("module.",),
)

DEIT = dataclasses.replace(TIMM, name="deit", position_interpolation="bicubic", preprocessing=IMAGENET_PREPROCESSING)
