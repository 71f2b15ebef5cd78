"""Hugging Face transformers: ViT and DeiT, DINOv2, and the image tower of SigLIP."""

from keras_vit.weights import codecs
from keras_vit.weights.names.official import BLOCK
from keras_vit.weights.names.source import IMAGENET_PREPROCESSING, Name, Source
from keras_vit.weights.names.timm import dense, norm

_BLOCK = "encoder.layer.{block}."


def _qkv(part):
    return tuple(f"{_BLOCK}attention.attention.{name}.{part}" for name in ("query", "key", "value"))


# What ViT, DeiT and DINOv2 call alike.
_COMMON = {
    "patch_embedding/kernel": Name(("embeddings.patch_embeddings.projection.weight",), codecs.TorchConv()),
    "patch_embedding/bias": Name(("embeddings.patch_embeddings.projection.bias",)),
    "class_token/tokens": Name(("embeddings.cls_token",)),
    "position_embedding/embeddings": Name(("embeddings.position_embeddings",)),
    BLOCK + "attention/qkv/kernel": Name(_qkv("weight"), codecs.FusedTransposed()),
    BLOCK + "attention/qkv/bias": Name(_qkv("bias"), codecs.FusedVectors()),
    **dense(BLOCK + "attention/out", _BLOCK + "attention.output.dense"),
    **norm("norm", "layernorm"),
    **dense("head", "classifier"),
}

HUGGINGFACE = Source(
    "huggingface",
    {
        **_COMMON,
        "distillation_token/tokens": Name(("embeddings.distillation_token",)),
        **norm(BLOCK + "norm_1", _BLOCK + "layernorm_before"),
        **norm(BLOCK + "norm_2", _BLOCK + "layernorm_after"),
        **dense(BLOCK + "mlp/dense_1", _BLOCK + "intermediate.dense"),
        **dense(BLOCK + "mlp/dense_2", _BLOCK + "output.dense"),
        # Its pooler is a dense layer with tanh on the class token, which is what pre_logits is.
        **dense("pre_logits", "pooler.dense"),
        **dense("head_dist", "distillation_classifier"),
    },
    # Unless the folder's config.json says otherwise, which it does.
    layer_norm_epsilon=1e-12,
    position_resize="bicubic",
    aliases=[(r"^cls_classifier\.", "classifier.")],
    ignored=r"(vit\.|deit\.)?embeddings\.mask_token$",
    prefixes=("vit.", "deit."),
    required=("class_token/tokens", "position_embedding/embeddings"),
)

# Its published classifiers see the mean of the patches too, which no head here does.
DINOV2 = Source(
    "dinov2",
    {
        **_COMMON,
        "registers/tokens": Name(("embeddings.register_tokens",)),
        **norm(BLOCK + "norm_1", _BLOCK + "norm1"),
        BLOCK + "layer_scale_1/gamma": Name((_BLOCK + "layer_scale1.lambda1",)),
        **norm(BLOCK + "norm_2", _BLOCK + "norm2"),
        **dense(BLOCK + "mlp/dense_1", _BLOCK + "mlp.fc1"),
        **dense(BLOCK + "mlp/dense_2", _BLOCK + "mlp.fc2"),
        BLOCK + "layer_scale_2/gamma": Name((_BLOCK + "layer_scale2.lambda1",)),
    },
    position_resize="bicubic",
    preprocessing=IMAGENET_PREPROCESSING,
    ignored=r"(dinov2\.|dinov2_with_registers\.)?embeddings\.mask_token$",
    prefixes=("dinov2.", "dinov2_with_registers."),
)

_SIGLIP_BLOCK = "encoder.layers.{block}."


def _siglip_qkv(part):
    return tuple(f"{_SIGLIP_BLOCK}self_attn.{name}_proj.{part}" for name in "qkv")


def _siglip_head():
    """Its pooling is PyTorch's own attention, which keeps queries, keys and values in one array."""
    rows = {"pooling/probe": Name(("head.probe",))}
    for i, ours in enumerate(("query", "key", "value")):
        kernel, bias = (codecs.Part(codec, i, 3) for codec in (codecs.HeadsTransposed(), codecs.Flat()))
        rows[f"pooling/attention/{ours}/kernel"] = Name(("head.attention.in_proj_weight",), kernel)
        rows[f"pooling/attention/{ours}/bias"] = Name(("head.attention.in_proj_bias",), bias)
    out = codecs.FromHeadsTransposed()
    rows["pooling/attention/attention_output/kernel"] = Name(("head.attention.out_proj.weight",), out)
    rows["pooling/attention/attention_output/bias"] = Name(("head.attention.out_proj.bias",))
    return {
        **rows,
        **norm("pooling/norm", "head.layernorm"),
        **dense("pooling/mlp/dense_1", "head.mlp.fc1"),
        **dense("pooling/mlp/dense_2", "head.mlp.fc2"),
    }


SIGLIP = Source(
    "siglip",
    {
        "patch_embedding/kernel": Name(("embeddings.patch_embedding.weight",), codecs.TorchConv()),
        "patch_embedding/bias": Name(("embeddings.patch_embedding.bias",)),
        "position_embedding/embeddings": Name(("embeddings.position_embedding.weight",), codecs.Ones(without=1)),
        **norm(BLOCK + "norm_1", _SIGLIP_BLOCK + "layer_norm1"),
        BLOCK + "attention/qkv/kernel": Name(_siglip_qkv("weight"), codecs.FusedTransposed()),
        BLOCK + "attention/qkv/bias": Name(_siglip_qkv("bias"), codecs.FusedVectors()),
        **dense(BLOCK + "attention/out", _SIGLIP_BLOCK + "self_attn.out_proj"),
        **norm(BLOCK + "norm_2", _SIGLIP_BLOCK + "layer_norm2"),
        **dense(BLOCK + "mlp/dense_1", _SIGLIP_BLOCK + "mlp.fc1"),
        **dense(BLOCK + "mlp/dense_2", _SIGLIP_BLOCK + "mlp.fc2"),
        **norm("norm", "post_layernorm"),
        **_siglip_head(),
        **dense("head", "classifier"),
    },
    activation="gelu_tanh",
    position_resize="bicubic",
    # The text tower and the loss' scale and bias.
    ignored=r"(text_model\.|logit_(scale|bias)$)",
    prefixes=("vision_model.",),
)
