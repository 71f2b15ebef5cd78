"""Hugging Face transformers: ViT and DeiT, DINOv2, and SigLIP's vision tower."""

from keras_vit.weights import codecs
from keras_vit.weights.names.official import BLOCK
from keras_vit.weights.names.source import IMAGENET_PREPROCESSING, Name, Source
from keras_vit.weights.names.timm import dense, norm, pooling

_BLOCK = "encoder.layer.{block}."


def _attention(queries, out):
    return {
        BLOCK + "attention/qkv/kernel": Name(tuple(f"{q}.weight" for q in queries), codecs.Fused(codecs.Transposed())),
        BLOCK + "attention/qkv/bias": Name(tuple(f"{q}.bias" for q in queries), codecs.Fused(codecs.Same())),
        **dense(BLOCK + "attention/out", out),
    }


# Names shared by ViT, DeiT and DINOv2.
_COMMON = {
    **dense("patch_embedding", "embeddings.patch_embeddings.projection", codecs.TorchConv()),
    "class_token/tokens": Name(("embeddings.cls_token",)),
    "position_embedding/embeddings": Name(("embeddings.position_embeddings",)),
    **_attention(
        [f"{_BLOCK}attention.attention.{name}" for name in ("query", "key", "value")],
        _BLOCK + "attention.output.dense",
    ),
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
        # Its pooler is a dense tanh layer on the class token, like pre_logits.
        **dense("pre_logits", "pooler.dense"),
        **dense("head_dist", "distillation_classifier"),
    },
    # The default; the folder's config.json usually has another value.
    layer_norm_epsilon=1e-12,
    position_interpolation="bicubic",
    aliases=[(r"^cls_classifier\.", "classifier.")],
    ignored=r"(vit\.|deit\.)?embeddings\.mask_token$",
    prefixes=("vit.", "deit."),
    required=("class_token/tokens", "position_embedding/embeddings"),
)

# Its published classifiers also use the mean of the patches, which is not supported.
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
    position_interpolation="bicubic",
    preprocessing=IMAGENET_PREPROCESSING,
    ignored=r"(dinov2\.|dinov2_with_registers\.)?embeddings\.mask_token$",
    prefixes=("dinov2.", "dinov2_with_registers."),
)

_SIGLIP_BLOCK = "encoder.layers.{block}."
# Its pooling uses PyTorch's MultiheadAttention, which keeps queries, keys and values in one array.
_POOLING_PARTS = [
    (name, "head.attention.in_proj_weight", "head.attention.in_proj_bias", i, 3)
    for i, name in enumerate(("query", "key", "value"))
]

SIGLIP = Source(
    "siglip",
    {
        **dense("patch_embedding", "embeddings.patch_embedding", codecs.TorchConv()),
        "position_embedding/embeddings": Name(("embeddings.position_embedding.weight",), codecs.Ones(without=1)),
        **norm(BLOCK + "norm_1", _SIGLIP_BLOCK + "layer_norm1"),
        **_attention([f"{_SIGLIP_BLOCK}self_attn.{name}_proj" for name in "qkv"], _SIGLIP_BLOCK + "self_attn.out_proj"),
        **norm(BLOCK + "norm_2", _SIGLIP_BLOCK + "layer_norm2"),
        **dense(BLOCK + "mlp/dense_1", _SIGLIP_BLOCK + "mlp.fc1"),
        **dense(BLOCK + "mlp/dense_2", _SIGLIP_BLOCK + "mlp.fc2"),
        **norm("norm", "post_layernorm"),
        **pooling("head.probe", _POOLING_PARTS, "head.attention.out_proj", "head.layernorm", "head.mlp"),
        **dense("head", "classifier"),
    },
    activation="gelu_tanh",
    position_interpolation="bicubic",
    # The text tower, and the scale and bias of the loss.
    ignored=r"(text_model\.|logit_(scale|bias)$)",
    prefixes=("vision_model.",),
)
