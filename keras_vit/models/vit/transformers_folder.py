"""Maps ViT configs to the model classes of Hugging Face transformers and their config.json."""

import dataclasses
from typing import NamedTuple

from keras_vit.models.vit.checkpoint.transformers import ACTIVATIONS
from keras_vit.models.vit.names.huggingface import CLIP, DINOV2, DINOV3, HUGGINGFACE, SIGLIP
from keras_vit.models.vit.timm_folder import USUAL
from keras_vit.weights.source import Source, dense

_ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}

# The fields that select the model class of transformers, with their most common values. `head` is True if
# num_classes > 0. `layer_scale` is True if the model has LayerScale.
_USUAL = {
    **USUAL,
    **{"head": False, "pooling": "token", "distillation_head": True, "return_both_heads": False},
    "rotary_embedding": None,
}
# Stands for any value of a field.
_ANY = object()


class Kind(NamedTuple):
    """A model class of transformers, and the fields in which its models differ from `_USUAL`."""

    architecture: str
    model_type: str
    source: Source
    fields: dict
    # The prefix of the backbone's keys.
    prefix: str = ""
    # True if the images and patches must be squares.
    square: bool = False

    def differences(self, record):
        """Yields (field, value that the class needs, value in the config `record`) for each field that differs."""
        derived = {"head": record.num_classes > 0, "layer_scale": record.layer_scale_init is not None}
        for field, value in {**_USUAL, **self.fields}.items():
            found = derived[field] if field in derived else getattr(record, field)
            if value is not _ANY and value != found:
                yield field, value, found
        if self.square and not all(a == b for a, b in (record.grid, record.patch_size)):
            yield "image_size and patch_size", "squares", (record.image_size, record.patch_size)
        gated = self.source.gated_activation if record.gated_mlp else None
        if record.activation not in (ACTIVATIONS.values() if gated is None else (gated,)):
            yield "activation", gated or "one that transformers has", record.activation
        if self.source is DINOV2:
            width = record.hidden_dim * _ratio(record)
            if record.mlp_dim != ((int(width * 2 / 3) + 7) // 8 * 8 if record.gated_mlp else width):
                yield "mlp_dim", "a size that an mlp_ratio gives", record.mlp_dim


_HEAD = {"head": True}
_DISTILLED = {"distillation_token": True}
_ONE_OUTPUT = {**_DISTILLED, "distillation_head": False}
_NO_TOKEN = {"class_token": False, "pooling": "gap"}
_DINOV2 = {"layer_scale": True, "gated_mlp": _ANY, "qkv_bias": _ANY}
_REGISTERS = {**_DINOV2, "num_registers": _ANY}
_DINOV3 = {**_REGISTERS, "position_embedding": "none", "rotary_embedding": "dinov3"}
_CLIP = {"norm_before_blocks": True, "patch_bias": False}
_BOTH, _PROJECTION = {"return_both_heads": _ANY}, {"projection_dim": _ANY}
_BIAS, _REPRESENTATION = {"qkv_bias": _ANY}, {"qkv_bias": _ANY, "representation_size": _ANY}

_GAP = {"pooling": "token_gap"}
_TEACHER = dataclasses.replace(HUGGINGFACE, names={**HUGGINGFACE.names, **dense("head", "cls_classifier")})
_WITH_REGISTERS = "dinov2_with_registers"
# If several of these kinds fit a model, the first fitting kind is written.
KINDS = (
    Kind("ViTForImageClassification", "vit", HUGGINGFACE, _HEAD | _BIAS, "vit."),
    Kind("ViTModel", "vit", HUGGINGFACE, _REPRESENTATION),
    Kind("DeiTForImageClassificationWithTeacher", "deit", _TEACHER, _HEAD | _DISTILLED | _BIAS | _BOTH, "deit."),
    Kind("DeiTForImageClassification", "deit", HUGGINGFACE, _HEAD | _ONE_OUTPUT | _BIAS, "deit."),
    Kind("DeiTModel", "deit", HUGGINGFACE, _ONE_OUTPUT | _REPRESENTATION),
    # SiglipForImageClassification has no row, because IJepaForImageClassification has the same outputs.
    Kind("IJepaForImageClassification", "ijepa", HUGGINGFACE, _HEAD | _NO_TOKEN | _BIAS, "ijepa."),
    Kind("IJepaModel", "ijepa", HUGGINGFACE, _NO_TOKEN | _BIAS),
    Kind("Dinov2ForImageClassification", "dinov2", DINOV2, _HEAD | _DINOV2 | _GAP, "dinov2.", True),
    Kind("Dinov2Model", "dinov2", DINOV2, _DINOV2, "", True),
    Kind(
        "Dinov2WithRegistersForImageClassification",
        _WITH_REGISTERS,
        DINOV2,
        _HEAD | _REGISTERS | _GAP,
        f"{_WITH_REGISTERS}.",
        True,
    ),
    Kind("Dinov2WithRegistersModel", _WITH_REGISTERS, DINOV2, _REGISTERS, "", True),
    Kind("DINOv3ViTModel", "dinov3_vit", DINOV3, _DINOV3),
    Kind("SiglipVisionModel", "siglip_vision_model", SIGLIP, {"class_token": False, "pooling": "map"}, "", True),
    Kind("CLIPVisionModel", "clip_vision_model", CLIP, _CLIP, "", True),
    Kind("CLIPVisionModelWithProjection", "clip_vision_model", CLIP, _CLIP | _PROJECTION, "vision_model.", True),
)


def transformers_folder(record, facts):
    """Returns (`Source`, prefix of the weight names, contents of config.json), as `Family.transformers` describes."""
    pairs = [(kind, list(kind.differences(record))) for kind in KINDS]
    kind, differences = min(pairs, key=lambda pair: sum(field in _USUAL for field, *_ in pair[1]))
    if differences:
        listed = ", ".join(f"{field}={value!r} (received {found!r})" for field, value, found in differences)
        raise ValueError(
            f"The format 'huggingface' has no model class with these settings. The nearest, {kind.architecture}, "
            f"needs {listed}."
        )
    height, width = facts["image_size"] or [n * p for n, p in zip(record.grid, record.patch_size, strict=True)]
    patch = record.patch_size
    config = {
        "architectures": [kind.architecture],
        "model_type": kind.model_type,
        "hidden_size": record.hidden_dim,
        "num_hidden_layers": record.num_layers,
        "num_attention_heads": record.num_heads,
        "hidden_act": _ACTIVATIONS.get(record.activation, record.activation),
        "layer_norm_eps": record.layer_norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": patch[0] if patch[0] == patch[1] else list(patch),
        **_own(kind, record),
    }
    if record.representation_size:
        config |= {"pooler_act": "tanh", "pooler_output_size": record.representation_size}
    return kind.source, kind.prefix, config


def _own(kind, record):
    """Returns the items of config.json that only some model classes have."""
    if kind.source in (CLIP, SIGLIP):
        dim = {} if record.projection_dim is None else {"projection_dim": record.projection_dim}
        return {"intermediate_size": record.mlp_dim, "attention_dropout": 0.0, **dim}
    if kind.source is DINOV3:
        return {
            "intermediate_size": record.mlp_dim,
            "use_gated_mlp": record.gated_mlp,
            "num_register_tokens": record.num_registers,
            "query_bias": record.qkv_bias,
            "key_bias": record.key_bias,
            "value_bias": record.qkv_bias,
            "rope_theta": 100.0,
        }
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "qkv_bias": record.qkv_bias}
    if kind.source is DINOV2:
        registers = {"num_register_tokens": record.num_registers} if record.num_registers else {}
        return {"mlp_ratio": _ratio(record), "use_swiglu_ffn": record.gated_mlp, **registers, **dropout}
    return {"intermediate_size": record.mlp_dim, **dropout}


def _ratio(record):
    """Returns DINOv2's integer mlp_ratio.

    A gated MLP has 2/3 of mlp_ratio * hidden_dim channels, rounded up to a multiple of 8.
    """
    return round(record.mlp_dim * (3 / 2 if record.gated_mlp else 1) / record.hidden_dim)
