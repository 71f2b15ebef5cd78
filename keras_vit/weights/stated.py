"""What a checkpoint tells of its model: for each field of the record whether it is stated, implied or unknown."""

from typing import NamedTuple

from keras_vit import variants
from keras_vit.config import total_stride
from keras_vit.model_config import ModelConfig
from keras_vit.preprocessing import Preprocessing

# What a published size of PyTorch's codes is told apart from others by: (hidden_dim, num_layers, mlp_dim).
_BASE = (768, 12, 3072)
_SO400M = 1152


class Stated(NamedTuple):
    """The record of a checkpoint, as far as it goes.

    Args:
        fields: Dict from fields of the record to values: those that the file says, by its arrays or beside them, and
            those that the published models of its source have in common.
        implied: Set of those that only follow from the source.
        unknown: Dict from fields that change what the weights compute, and that neither tells, to the reason.
    """

    fields: dict
    implied: set
    unknown: dict


def stated(checkpoint):
    """Reads a `Stated` from an open Checkpoint."""
    found = Stated({}, set(), {})
    sizes = checkpoint.architecture
    found.fields.update(in_channels=sizes.in_channels, num_classes=sizes.num_classes)
    _preprocessing(checkpoint, found)
    if sizes.num_layers:
        _vit(checkpoint, found)
    elif sizes.stages:
        found.fields.update(stages=sizes.stages, width_factor=sizes.width_factor)
        found.unknown["pool_padding"] = "codes that read such files differ in it"
    else:
        raise ValueError(f"Expected a ViT or a ResNet in {checkpoint.path!r}. Received: {sizes}")
    _own_record(checkpoint, found)
    return found


def _own_record(checkpoint, found):
    """What arrays do not show, from the record that `save_weights` writes beside them."""
    if "config" not in checkpoint.own:
        return
    values = dict(checkpoint.own["config"])
    for name in ("activation", "classifier_activation"):
        # A function of the user's own is to be passed, where it is not registered.
        try:
            ModelConfig(classifier_activation=values.get(name))
        except ValueError:
            del values[name]
            found.fields.pop(name, None)
            found.unknown[name] = "it is a function of its user's own"
    try:
        config = ModelConfig.from_dict(values)
    except ValueError as error:
        raise ValueError(f"Cannot read weights from {checkpoint.path!r}: its record is damaged. {error}") from None
    for name in values.keys() - {"family"}:
        if name not in found.fields or name in found.implied or name in ("image_size", "activation"):
            found.fields[name] = getattr(config, name)
    found.implied.clear()
    for name in values:
        found.unknown.pop(name, None)


def _vit(checkpoint, found):
    sizes, weights, fields = checkpoint.architecture, checkpoint.weights, found.fields
    untold = [name for name in ("hidden_dim", "mlp_dim", "patch_size") if getattr(sizes, name) is None]
    if untold:
        raise ValueError(f"Cannot tell {' and '.join(untold)} from the shapes in {checkpoint.path!r}.")
    has_class_token = "class_token/tokens" in weights
    fields.update(
        hidden_dim=sizes.hidden_dim,
        num_layers=sizes.num_layers,
        mlp_dim=sizes.mlp_dim,
        patch_size=sizes.patch_size,
        class_token=has_class_token,
        distillation_token="distillation_token/tokens" in weights,
        distillation_head="head_dist/kernel" in weights or "head/kernel" not in weights,
        num_registers=weights["registers/tokens"][1] if "registers/tokens" in weights else 0,
        qk_norm="block_00/attention/query_norm/gamma" in weights,
        norm_after_pooling="fc_norm/gamma" in weights,
    )
    if sizes.stages is not None:
        fields.update(stages=sizes.stages, width_factor=sizes.width_factor)
    if "block_00/layer_scale_1/gamma" in weights:
        # The file's values replace it.
        fields["layer_scale_init"] = 1.0
        found.implied.add("layer_scale_init")
    if "pre_logits/kernel" in weights:
        fields["representation_size"] = weights["pre_logits/kernel"][1]
    _num_heads(checkpoint, found)
    _pooling(checkpoint, found)
    _settings(checkpoint, found)
    _positions(checkpoint, found)


def _num_heads(checkpoint, found):
    sizes = checkpoint.architecture
    dims = (sizes.hidden_dim, sizes.num_layers, sizes.mlp_dim)
    published = variants.num_heads_of(*dims)
    if sizes.num_heads is not None:
        found.fields["num_heads"] = sizes.num_heads
    elif published is None:
        found.unknown["num_heads"] = "no published model has these widths and depth"
    elif checkpoint.source.name == "timm" and dims == _BASE and _gap_of_all(checkpoint.weights):
        found.unknown["num_heads"] = "timm has such models of 12 and of 16 heads"
    else:
        found.fields["num_heads"] = published
        found.implied.add("num_heads")


def _gap_of_all(weights):
    """Whether the mean of all tokens is taken behind the last norm, without a class token."""
    return not {"class_token/tokens", "pooling/probe", "fc_norm/gamma"} & set(weights)


def _pooling(checkpoint, found):
    pooling = checkpoint.settings["pooling"]
    if pooling is not None:
        found.fields["pooling"] = None if pooling == "none" else pooling
    elif checkpoint.source.name == "keras":
        found.unknown["pooling"] = "arrays do not show it beside a class token"
    else:
        # With a class token timm takes the mean of the patches only with a norm of its own behind it.
        found.fields["pooling"] = "gap" if found.fields["norm_after_pooling"] else "token"
        found.implied.add("pooling")


def _settings(checkpoint, found):
    for name in ("activation", "layer_norm_epsilon"):
        value = checkpoint.settings[name]
        if value is None:
            found.unknown[name] = f"{checkpoint.source.name} files do not tell it"
            continue
        found.fields[name] = value
        if not checkpoint.says_settings:
            found.implied.add(name)
    if "activation" in found.implied and checkpoint.source.name == "timm" and found.fields["hidden_dim"] == _SO400M:
        del found.fields["activation"]
        found.unknown["activation"] = "timm has such models of both GELUs"


def _positions(checkpoint, found):
    if checkpoint.image_size is not None:
        found.fields["image_size"] = checkpoint.image_size
    if "position_embedding/embeddings" in checkpoint.weights:
        found.fields["class_token_position"] = checkpoint.num_prefix_positions > 0 or not found.fields["class_token"]
        if checkpoint.image_size is None and checkpoint.grid_size is not None:
            sizes = checkpoint.architecture
            stride = 1 if sizes.stages is None else total_stride(sizes.stages)
            pairs = zip(checkpoint.grid_size, sizes.patch_size, strict=True)
            found.fields["image_size"] = tuple(n * patch * stride for n, patch in pairs)
            found.implied.add("image_size")
    elif checkpoint.source.name == "big_vision":
        # Its code knows no other models without a table.
        found.fields["position_embedding"] = "sincos2d"
        found.implied.add("position_embedding")
    else:
        found.unknown["position_embedding"] = "the file has no table of positions"


def _preprocessing(checkpoint, found):
    # Of timm's models DeiT's alone have such a token.
    distilled = "distillation_token/tokens" in checkpoint.weights
    if checkpoint.says_preprocessing:
        found.fields["preprocessing"] = Preprocessing(**checkpoint.preprocessing)
    elif checkpoint.source.name == "keras" or (checkpoint.source.name == "timm" and not distilled):
        found.unknown["preprocessing"] = f"{checkpoint.source.name} has models of several"
    else:
        found.fields["preprocessing"] = Preprocessing(**checkpoint.preprocessing)
        found.implied.add("preprocessing")
