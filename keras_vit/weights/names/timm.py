"""timm state dicts, which DeiT's own .pth files share."""

from keras_vit.weights import codecs
from keras_vit.weights.names.official import BLOCK
from keras_vit.weights.names.source import IMAGENET_PREPROCESSING, Name, Source

DENSE = codecs.Transposed()


def dense(ours, theirs):
    """The two rows of a dense layer in PyTorch."""
    return {f"{ours}/kernel": Name((f"{theirs}.weight",), DENSE), f"{ours}/bias": Name((f"{theirs}.bias",))}


def norm(ours, theirs):
    """The two rows of a norm in PyTorch."""
    return {f"{ours}/gamma": Name((f"{theirs}.weight",)), f"{ours}/beta": Name((f"{theirs}.bias",))}


def _map_head():
    rows = {"pooling/probe": Name(("attn_pool.latent",))}
    for ours, key, part, count in (("query", "q", 0, 1), ("key", "kv", 0, 2), ("value", "kv", 1, 2)):
        kernel, bias = (codecs.Part(codec, part, count) for codec in (codecs.HeadsTransposed(), codecs.Flat()))
        rows[f"pooling/attention/{ours}/kernel"] = Name((f"attn_pool.{key}.weight",), kernel)
        rows[f"pooling/attention/{ours}/bias"] = Name((f"attn_pool.{key}.bias",), bias)
    rows["pooling/attention/attention_output/kernel"] = Name(("attn_pool.proj.weight",), codecs.FromHeadsTransposed())
    rows["pooling/attention/attention_output/bias"] = Name(("attn_pool.proj.bias",))
    return {
        **rows,
        **norm("pooling/norm", "attn_pool.norm"),
        **dense("pooling/mlp/dense_1", "attn_pool.mlp.fc1"),
        **dense("pooling/mlp/dense_2", "attn_pool.mlp.fc2"),
    }


_BLOCK = "blocks.{block}."

TIMM = Source(
    "timm",
    {
        "patch_embedding/kernel": Name(("patch_embed.proj.weight",), codecs.TorchConv()),
        "patch_embedding/bias": Name(("patch_embed.proj.bias",)),
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
        **_map_head(),
        **dense("pre_logits", "pre_logits.fc"),
        **dense("head", "head"),
        **dense("head_dist", "head_dist"),
    },
    position_resize="bicubic_antialias",
    # DeiT III's own files name the scales of its blocks otherwise.
    aliases=[(r"(?<=\.)gamma_([12])$", r"ls\1.gamma")],
    prefixes=("module.",),
)

DEIT = TIMM.but("deit", position_resize="bicubic", preprocessing=IMAGENET_PREPROCESSING)
