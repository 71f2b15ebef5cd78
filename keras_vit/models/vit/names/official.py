"""The names of weights in the .npz files of the official Flax code (ViT and hybrids) and of big_vision (ViT)."""

from keras_vit.images.constants import OFFICIAL_PREPROCESSING
from keras_vit.weights import codecs
from keras_vit.weights.source import BLOCK, UNIT, Name, Source

_SAME = codecs.Identity()


def _dense(ours, theirs):
    return {f"{ours}/{part}": Name((f"{theirs}/{part}",)) for part in ("kernel", "bias")}


def _norm(ours, theirs, codec=_SAME):
    return {f"{ours}/gamma": Name((f"{theirs}/scale",), codec), f"{ours}/beta": Name((f"{theirs}/bias",), codec)}


def _encoder(block, attention, norm_2, mlp):
    """Returns {our weight path: `Name`} except for the position embedding. The arguments are names in the file."""

    def qkv(part):
        return tuple(f"{block}{attention}/{name}/{part}" for name in ("query", "key", "value"))

    return {
        **_dense("patch_embedding", "embedding"),
        "class_token/tokens": Name(("cls",)),
        BLOCK + "attention/qkv/kernel": Name(qkv("kernel"), codecs.Fused(codecs.Heads(1))),
        BLOCK + "attention/qkv/bias": Name(qkv("bias"), codecs.Fused(codecs.Heads(0))),
        BLOCK + "attention/out/kernel": Name((f"{block}{attention}/out/kernel",), codecs.Heads(0)),
        BLOCK + "attention/out/bias": Name((f"{block}{attention}/out/bias",)),
        **_norm(BLOCK + "norm_1", f"{block}LayerNorm_0"),
        **_norm(BLOCK + "norm_2", f"{block}{norm_2}"),
        **_dense(BLOCK + "mlp/dense_1", f"{block}{mlp}/Dense_0"),
        **_dense(BLOCK + "mlp/dense_2", f"{block}{mlp}/Dense_1"),
        **_norm("norm", "Transformer/encoder_norm"),
        **_dense("pre_logits", "pre_logits"),
        **_dense("head", "head"),
    }


def _hybrid_stem():
    # In the published files, GroupNorm parameters have the shape (1, 1, 1, channels).
    vector = codecs.Squeeze()
    rows = {"root_conv/kernel": Name(("conv_root/kernel",)), **_norm("root_norm", "gn_root", vector)}
    for ours, theirs in (("_1", "1"), ("_2", "2"), ("_3", "3"), ("_proj", "_proj")):
        rows[f"{UNIT}conv{ours}/kernel"] = Name((f"block{{stage}}/unit{{unit}}/conv{theirs}/kernel",))
        rows |= _norm(f"{UNIT}norm{ours}", f"block{{stage}}/unit{{unit}}/gn{theirs}", vector)
    return rows


OFFICIAL = Source(
    "official",
    {
        **_encoder("Transformer/encoderblock_{block}/", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
        "position_embedding/embeddings": Name(("Transformer/posembed_input/pos_embedding",)),
        **_hybrid_stem(),
    },
    activation="gelu_tanh",
    preprocessing=OFFICIAL_PREPROCESSING,
    # Newer versions of Flax number the submodules of each class from 0. Older versions number all submodules of a block
    # together.
    aliases=[
        (r"(?<=/)MultiHeadDotProductAttention_0(?=/)", "MultiHeadDotProductAttention_1"),
        (r"(?<=/)LayerNorm_1(?=/)", "LayerNorm_2"),
        (r"(?<=/)MlpBlock_0(?=/)", "MlpBlock_3"),
    ],
    ignored=r"opt/state/",
    prefixes=("opt/target/",),
)


def _map_head():
    rows = {
        "pooling/probe": Name(("MAPHead_0/probe",)),
        **_norm("pooling/norm", "MAPHead_0/LayerNorm_0"),
        **_dense("pooling/mlp/dense_1", "MAPHead_0/MlpBlock_0/Dense_0"),
        **_dense("pooling/mlp/dense_2", "MAPHead_0/MlpBlock_0/Dense_1"),
    }
    for ours, theirs in (("query", "query"), ("key", "key"), ("value", "value"), ("attention_output", "out")):
        rows |= _dense(f"pooling/attention/{ours}", f"MAPHead_0/MultiHeadDotProductAttention_0/{theirs}")
    return rows


# Only the image tower of an image-text model is read.
BIG_VISION = Source(
    "big_vision",
    {
        **_encoder("Transformer/encoderblock_{block}/", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
        "position_embedding/embeddings": Name(("pos_embedding",)),
        **_map_head(),
    },
    activation="gelu_tanh",
    preprocessing=OFFICIAL_PREPROCESSING,
    class_token_position=False,
    # Older versions store the position table and the MAP head under other keys.
    aliases=[
        (r"^Transformer/(posembed_input/)?pos_embedding$", "pos_embedding"),
        (r"^(?=(probe|MlpBlock_0|MultiHeadDotProductAttention_0|LayerNorm_0)(/|$))", "MAPHead_0/"),
    ],
    ignored=r"(params/)?(txt/|t$|b$)|opt/",
    prefixes=("params/", "img/"),
    stacked=("Transformer/encoderblock/", "Transformer/encoderblock_{}/"),
)
