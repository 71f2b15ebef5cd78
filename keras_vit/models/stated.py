"""Gathers the fields of a model's config from a checkpoint, and lists those that stay unknown."""

from typing import NamedTuple

from keras_vit.config import ModelConfig, Preprocessing
from keras_vit.models.bit.config import total_stride
from keras_vit.models.families import FAMILIES
from keras_vit.models.fields import fixed_positions, is_gated, settings_of_resnet
from keras_vit.models.labels import labels_of
from keras_vit.models.vit import variants as vit

# The widths that models of photos and of satellite images share.
_DINOV3_OF_TWO_KINDS = (1024, 4096)


class Stated(NamedTuple):
    """The known config fields of a checkpoint's model, and {unknown field: reason}."""

    fields: dict
    unknown: dict


def stated(checkpoint):
    """Returns the `Stated` of an open Checkpoint."""
    sizes = checkpoint.sizes
    found = Stated({"in_channels": sizes["in_channels"], "num_classes": sizes["num_classes"]}, {})
    if sizes["stages"] is not None:
        found.fields.update(stages=sizes["stages"], width_factor=sizes["width_factor"])
    if sizes["num_layers"]:
        _add_arrays_of_vit(checkpoint, found.fields)
    elif not sizes["stages"] and checkpoint.source.family is None:
        raise ValueError(f"Expected a ViT or a ResNet in {checkpoint.path!r}, which has no blocks of either.")
    if "config" in checkpoint.own:
        _add_own_record(checkpoint, found)
        return found
    _add_preprocessing(checkpoint, found)
    found.fields.update(labels_of(checkpoint))
    if checkpoint.source.family is not None:
        if checkpoint.image_size is not None:
            found.fields["image_size"] = checkpoint.image_size
        FAMILIES[checkpoint.source.family].add_fields(checkpoint, found)
        return found
    if sizes["num_layers"]:
        _add_timm(checkpoint, found)
        _add_num_heads(checkpoint, found)
        _add_settings(checkpoint, found)
        _add_positions(checkpoint, found)
    elif checkpoint.image_size is not None:
        found.fields["image_size"] = checkpoint.image_size
    for name in settings_of_resnet(checkpoint.weights):
        if checkpoint.settings[name] is None:
            found.unknown[name] = "it differs between the code bases that read such files"
        else:
            found.fields[name] = checkpoint.settings[name]
    return found


def _add_own_record(checkpoint, found):
    """Adds the fields that arrays do not show from the config that `save_weights` stores."""
    values = dict(checkpoint.own["config"])
    for name in ("activation", "classifier_activation"):
        try:
            ModelConfig(classifier_activation=values.get(name))
        except ValueError:
            del values[name]
            found.unknown[name] = "it is a function defined by its user"
    try:
        config = ModelConfig.from_dict(values)
    except ValueError as error:
        raise ValueError(f"Cannot read weights from {checkpoint.path!r}: its record is damaged. {error}") from None
    for name in values.keys() - {"family"}:
        found.fields.setdefault(name, getattr(config, name))


def _add_arrays_of_vit(checkpoint, fields):
    """Adds the fields shown by the file's arrays and the metadata needed to read them."""
    sizes, weights = checkpoint.sizes, checkpoint.weights
    untold = [name for name in ("hidden_dim", "mlp_dim", "patch_size") if sizes[name] is None]
    if untold:
        raise ValueError(f"Cannot tell {' and '.join(untold)} from the shapes in {checkpoint.path!r}.")
    fields.update({name: sizes[name] for name in ("hidden_dim", "num_layers", "mlp_dim", "patch_size")})
    fields.update(
        class_token="class_token/tokens" in weights,
        distillation_token="distillation_token/tokens" in weights,
        distillation_head="head_dist/kernel" in weights or "head/kernel" not in weights,
        num_registers=weights["registers/tokens"][1] if "registers/tokens" in weights else 0,
        qk_norm="block_00/attention/query_norm/gamma" in weights,
        norm_after_pooling="fc_norm/gamma" in weights,
        patch_bias="patch_embedding/bias" in weights,
        norm_before_blocks="norm_before_blocks/gamma" in weights,
        qkv_bias="block_00/attention/qkv/bias" in weights,
        attention_norm="block_00/attention/norm/gamma" in weights,
        gated_mlp=is_gated(weights),
        mlp_norm="block_00/mlp/norm/gamma" in weights,
    )
    if checkpoint.source.find("block_00/attention/qkv/bias").codec.without_keys:
        fields["key_bias"] = False
    if checkpoint.source.name == "huggingface" and "head/kernel" not in weights:
        # DeiTModel has the distillation token, and its output is the class token's.
        fields["distillation_head"] = False
    if "projection/kernel" in weights:
        fields["projection_dim"] = weights["projection/kernel"][1]
    if "pre_logits/kernel" in weights:
        fields["representation_size"] = weights["pre_logits/kernel"][1]
    if "position_embedding/embeddings" in weights:
        fields["class_token_position"] = checkpoint.num_prefix_positions > 0 or not fields["class_token"]
    if sizes["num_heads"] is not None:
        fields["num_heads"] = sizes["num_heads"]
    if checkpoint.settings["pooling"] is not None:
        pooling = checkpoint.settings["pooling"]
        fields["pooling"] = pooling


def _add_preprocessing(checkpoint, found):
    source = checkpoint.source.name
    # Among timm's models only DeiT's have a distillation token.
    one_kind = source not in ("keras", "timm", "timm_bit", "open_clip_timm") or (
        source == "timm" and "distillation_token/tokens" in checkpoint.weights
    )
    if checkpoint.config.get("model_type") in ("ijepa", "vit_msn"):
        one_kind, source = False, checkpoint.config["model_type"]
    if source == "dinov3_original" and found.fields["hidden_dim"] in _DINOV3_OF_TWO_KINDS:
        # Those of photos and those of satellite images.
        one_kind = False
    one_kind &= checkpoint.source.family is None
    if checkpoint.says_preprocessing or one_kind:
        found.fields["preprocessing"] = Preprocessing(**checkpoint.preprocessing)
    else:
        found.unknown["preprocessing"] = f"{source} models differ in it"


def _add_timm(checkpoint, found):
    """Leaves to its caller what neither the arrays nor the name of timm's model tell."""
    found.unknown.update(checkpoint.unknown_of_timm)
    for name in checkpoint.unknown_of_timm:
        found.fields.pop(name, None)


def _add_num_heads(checkpoint, found):
    fields = found.fields
    if "num_heads" in fields or "num_heads" in found.unknown:
        return
    dims = fields["hidden_dim"], fields["num_layers"], fields["mlp_dim"]
    # Some of DINOv3 have the sizes of others.
    known = not checkpoint.source.name.startswith("dinov3")
    published = vit.num_heads_of(*dims, fields.get("gated_mlp", False)) if known else None
    if published is None:
        found.unknown["num_heads"] = "no published model has these widths and depth"
    else:
        fields["num_heads"] = published


def _add_settings(checkpoint, found):
    source, fields, weights = checkpoint.source.name, found.fields, checkpoint.weights
    if "block_00/layer_scale_1/gamma" in weights:
        # Any value: it is overwritten by the file's.
        fields["layer_scale_init"] = 1.0
    if "pooling" in found.unknown:
        pass
    elif "pooling" not in fields and _pools_unseen(source, fields):
        found.unknown["pooling"] = "with a class token the arrays do not show it"
    elif "pooling" not in fields:
        # With a class token, timm averages the patches only if a norm follows.
        fields["pooling"] = "gap" if fields["norm_after_pooling"] else "token"
    for name in ("activation", "layer_norm_epsilon"):
        if checkpoint.settings[name] is not None:
            fields[name] = checkpoint.settings[name]
        else:
            found.unknown.setdefault(name, f"{source} files do not contain it")


def _pools_unseen(source, fields):
    """Returns whether a model with a class token may pool in several ways that its arrays do not show."""
    # EVA-02's pre-training has no pooling, and OpenCLIP's models without the first norm have the mean.
    seen = {"eva02": "norm_after_pooling", "open_clip": "norm_before_blocks"}
    return not fields[seen[source]] if source in seen else source in ("keras", "open_clip_timm")


def _add_positions(checkpoint, found):
    fields = found.fields
    if checkpoint.image_size is not None:
        fields["image_size"] = checkpoint.image_size
    fields.update(checkpoint.rotary)
    found.unknown.update(checkpoint.unknown_rotary)
    if "position_embedding/embeddings" in checkpoint.weights:
        if checkpoint.image_size is None and checkpoint.grid_size is not None:
            stride = total_stride(fields["stages"]) if "stages" in fields else 1
            pairs = zip(checkpoint.grid_size, fields["patch_size"], strict=True)
            fields["image_size"] = tuple(n * patch * stride for n, patch in pairs)
    elif fixed_positions(checkpoint) is not None:
        fields["position_embedding"] = fixed_positions(checkpoint)
    else:
        found.unknown["position_embedding"] = "the file has no table of positions"
