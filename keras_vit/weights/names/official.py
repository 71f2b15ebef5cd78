"""The official Flax code: ViT and hybrid .npz files by their published names, and big_vision's."""

from keras_vit.weights import codecs
from keras_vit.weights.names.source import Name, Source

BLOCK = "block_{block:02d}/"
UNIT = "stage_{stage}_unit_{unit:02d}/"
# Published GroupNorm parameters are (1, 1, 1, channels).
_VECTOR = codecs.Ones()


def encoder(block, attention, norm_2, mlp):
    """The rows of embedding, blocks and head; `block` and the others are the names of modules in a block."""

    def qkv(part):
        return tuple(f"{block}{attention}/{name}/{part}" for name in ("query", "key", "value"))

    rows = {
        "patch_embedding/kernel": Name(("embedding/kernel",)),
        "patch_embedding/bias": Name(("embedding/bias",)),
        "class_token/tokens": Name(("cls",)),
        BLOCK + "attention/qkv/kernel": Name(qkv("kernel"), codecs.FusedKernel()),
        BLOCK + "attention/qkv/bias": Name(qkv("bias"), codecs.FusedBias()),
        BLOCK + "attention/out/kernel": Name((f"{block}{attention}/out/kernel",), codecs.OutKernel()),
        BLOCK + "attention/out/bias": Name((f"{block}{attention}/out/bias",)),
    }
    for norm, module in (("norm_1", "LayerNorm_0"), ("norm_2", norm_2)):
        rows[BLOCK + norm + "/gamma"] = Name((f"{block}{module}/scale",))
        rows[BLOCK + norm + "/beta"] = Name((f"{block}{module}/bias",))
    for i in (0, 1):
        for part in ("kernel", "bias"):
            rows[f"{BLOCK}mlp/dense_{i + 1}/{part}"] = Name((f"{block}{mlp}/Dense_{i}/{part}",))
    rows["norm/gamma"] = Name(("Transformer/encoder_norm/scale",))
    rows["norm/beta"] = Name(("Transformer/encoder_norm/bias",))
    for layer in ("pre_logits", "head"):
        for part in ("kernel", "bias"):
            rows[f"{layer}/{part}"] = Name((f"{layer}/{part}",))
    return rows


def _hybrid_stem():
    rows = {
        "root_conv/kernel": Name(("conv_root/kernel",)),
        "root_norm/gamma": Name(("gn_root/scale",), _VECTOR),
        "root_norm/beta": Name(("gn_root/bias",), _VECTOR),
    }
    unit = "block{stage}/unit{unit}/"
    for part in ("1", "2", "3", "_proj"):
        ours = part if part == "_proj" else f"_{part}"
        rows[f"{UNIT}conv{ours}/kernel"] = Name((f"{unit}conv{part}/kernel",))
        rows[f"{UNIT}norm{ours}/gamma"] = Name((f"{unit}gn{part}/scale",), _VECTOR)
        rows[f"{UNIT}norm{ours}/beta"] = Name((f"{unit}gn{part}/bias",), _VECTOR)
    return rows


OFFICIAL = Source(
    "official",
    {
        **encoder("Transformer/encoderblock_{block}/", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
        "position_embedding/embeddings": Name(("Transformer/posembed_input/pos_embedding",)),
        **_hybrid_stem(),
    },
    activation="gelu_tanh",
    # Newer Flax numbers submodules by class, older Flax by their place in the block.
    aliases=[
        (r"(?<=/)MultiHeadDotProductAttention_0(?=/)", "MultiHeadDotProductAttention_1"),
        (r"(?<=/)LayerNorm_1(?=/)", "LayerNorm_2"),
        (r"(?<=/)MlpBlock_0(?=/)", "MlpBlock_3"),
    ],
    ignored=r"opt/state/",
    prefixes=("opt/target/",),
)


def _map_head():
    rows = {"pooling/probe": Name(("MAPHead_0/probe",))}
    attention = "MAPHead_0/MultiHeadDotProductAttention_0/"
    for ours, theirs in (("query", "query"), ("key", "key"), ("value", "value"), ("attention_output", "out")):
        for part in ("kernel", "bias"):
            rows[f"pooling/attention/{ours}/{part}"] = Name((f"{attention}{theirs}/{part}",))
    rows["pooling/norm/gamma"] = Name(("MAPHead_0/LayerNorm_0/scale",))
    rows["pooling/norm/beta"] = Name(("MAPHead_0/LayerNorm_0/bias",))
    for i in (0, 1):
        for part in ("kernel", "bias"):
            rows[f"pooling/mlp/dense_{i + 1}/{part}"] = Name((f"MAPHead_0/MlpBlock_0/Dense_{i}/{part}",))
    return rows


# The image tower alone is a ViT; the text tower and the loss' scale and bias beside it are not.
BIG_VISION = Source(
    "big_vision",
    {
        **encoder("Transformer/encoderblock_{block}/", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
        "position_embedding/embeddings": Name(("pos_embedding",)),
        **_map_head(),
    },
    activation="gelu_tanh",
    class_token_position=False,
    # Where older versions of it kept the table and the MAP head.
    aliases=[
        (r"^Transformer/(posembed_input/)?pos_embedding$", "pos_embedding"),
        (r"^(?=(probe|MlpBlock_0|MultiHeadDotProductAttention_0|LayerNorm_0)(/|$))", "MAPHead_0/"),
    ],
    ignored=r"(params/)?(txt/|t$|b$)|opt/",
    prefixes=("params/", "img/"),
    stacked=("Transformer/encoderblock/", "Transformer/encoderblock_{}/"),
)
