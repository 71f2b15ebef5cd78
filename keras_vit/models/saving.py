"""Saves weights in the formats of other code bases."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.config import config_of, find_normalization
from keras_vit.models.catalog import FAMILIES
from keras_vit.models.loading import allowed_settings, current_fields, head_sizes, refuse_own_family
from keras_vit.models.model_card import model_card
from keras_vit.models.vit import timm_folder
from keras_vit.version import __version__
from keras_vit.weights import hub, timm_config
from keras_vit.weights.tokens import PREFIX_TOKENS, REGISTERS, rows_of_tokens, weights_by_path
from keras_vit.weights.transformers_config import id2label, preprocessor_config, with_prefix, write_folder
from keras_vit.weights.write import write_npz, write_safetensors

FORMATS = ("npz", "big_vision", "timm", "huggingface")
# {source: prefix of all keys in its files}.
_PREFIXES = {"big_vision": "params/", "bit": "resnet/"}


def save_weights(
    model: keras.Model, path: str | os.PathLike, format: str = "npz", *, allow: str | Sequence[str] = ()
) -> None:
    """Saves a model's weights in the format of another code base. If a weight cannot be saved, nothing is written.

    Every format also contains the model's config and preprocessing, which `from_pretrained` reads.

    Args:
        model: A model of any family except VT-ResNet. CoAtNet and EfficientNet have only the format "timm".
        path: Path of the file, or of the folder for "huggingface" and "timm". Existing files are replaced. If the path
            is `hf://owner/name[@branch][/file or folder]`, the files are uploaded. If the repository has no README.md,
            a model card is added. A missing repository is created as a public one.
        format: "npz" for the official code, which is in Flax for ViT and in TensorFlow for BiT. "big_vision" for an
            .npz that big_vision's `load` reads. "timm" for a state dict if the path ends in .safetensors. If the path
            ends differently, "timm" writes a folder for `timm.create_model("local-dir:...")`. The folder can be
            written only if an architecture of timm has the model's settings. "huggingface" for a folder of the
            transformers class with the same outputs: ViT, DeiT, I-JEPA, DINOv2, DINOv3, SigLIP, CLIP or BiT.
        allow: Names of settings in which the model may differ from the code that reads the format: "activation",
            "layer_norm_epsilon", "resnet_epsilons", "pool_padding". If you allowed a setting and load the state dict in
            timm, pass the setting to timm, for example `act_layer="gelu_tanh"`. A timm folder contains the activation
            and the epsilon.

    Raises:
        ValueError: If the format is unknown or cannot hold the model's weights, if the library that reads the format
            would compute other outputs than the model, or if reading `path` would also read an older upload.
        OSError: If an upload fails. Denied access raises PermissionError; a missing network raises ConnectionError.

    Example:

    >>> keras_vit.save_weights(keras_vit.ViTTi16(), "ViT-Ti_16.npz")  # doctest: +SKIP
    >>> keras_vit.save_weights(keras_vit.ViTTi16(), "hf://me/vit", format="huggingface")  # doctest: +SKIP
    """
    arguments.choice("format", format, FORMATS)
    refuse_own_family(model)
    arguments.names("allow", allow)
    if hub.is_name(arguments.path("path", path)):
        hub.upload(
            path,
            format,
            lambda draft: save_weights(model, draft, format, allow=allow),
            lambda repo, folder: model_card(model, path, repo, folder, format),
        )
        return
    fields, family = current_fields(model), FAMILIES[config_of(model).family]
    if format not in family.formats:
        known, what = " or ".join(map(repr, family.formats)), "formats" if len(family.formats) > 1 else "format"
        raise arguments.invalid("format", f"{known}, the only {what} of {family.name} models", format)
    record = _record(model, fields)
    source, facts = family.formats[format].spelled_for(record), _facts(model, record)
    in_folder = format == "timm" and Path(path).suffix != ".safetensors"
    if in_folder and family.timm is None:
        raise arguments.invalid("path", "the path of a .safetensors file, since timm has no such models", path)
    if in_folder:
        try:
            name, args = family.timm(record)
        except ValueError as error:
            hint = " Write a state dict: a path that ends in .safetensors."
            raise _refusal("timm folder", model, error, hint) from None
    if format == "timm" and family.name == "vit":
        source = timm_folder.timm_source(record)
    if format == "huggingface":
        source, start, content = family.transformers(record, facts)
        source = source.spelled_for(record)
    variables = weights_by_path(model)
    _check(model, format, source, fields, variables, allow, settings_are_stored=in_folder or format == "huggingface")
    values = {weight: np.asarray(ops.convert_to_numpy(ops.cast(v, "float32"))) for weight, v in variables.items()}
    if not getattr(record, "key_bias", True):
        for weight in (name for name in values if name.endswith("/attention/qkv/bias")):
            # The model does not use the biases of the keys, so write zeros.
            values[weight] = values[weight] * np.repeat(np.float32([1, 0, 1]), values[weight].size // 3)
    _fit_prefix_positions(values, fields, format)
    arrays = _arrays(source, values, fields)
    if format == "huggingface":
        preprocessor = preprocessor_config(facts, record.in_channels)
        content |= {"num_channels": record.in_channels, **id2label(record)}
        write_folder(Path(path), with_prefix(arrays, start), content, facts, preprocessor)
    elif in_folder:
        write_folder(Path(path), arrays, timm_config.config_json(name, args, record, facts, source, arrays), facts)
    elif format == "timm":
        write_safetensors(path, arrays, facts)
    else:
        prefix = _PREFIXES.get(source.name, "")
        write_npz(path, {prefix + key: array for key, array in arrays.items()}, {"keras_vit": facts})


def _num_prefix_positions(format, counts, here, grid):
    """Returns the number of position embeddings that a file of this format contains for prefix tokens.

    `counts` is {weight of prefix tokens: number of tokens}. `here` is the number of position embeddings that the model
    has for prefix tokens, and `grid` is the (rows, columns) of its patches.
    """
    if format == "timm":
        # A timm model has positions for all prefix tokens, or for none (`no_embed_class`). A distilled model has all.
        return sum(counts.values()) if here or "distillation_token/tokens" in counts else 0
    if format == "big_vision":
        # big_vision's models have no positions for prefix tokens. If big_vision's `load` finds one position before a
        # square grid of positions, it adds this position to the class token.
        return here if grid[0] == grid[1] and sum(counts.values()) == 1 else 0
    return sum(count for name, count in counts.items() if format != "huggingface" or name in PREFIX_TOKENS)


def _fit_prefix_positions(values, fields, format):
    """Fits the position table in `values` to a format: new rows are 0, and dropped rows are added to their tokens."""
    table = values.get("position_embedding/embeddings")
    if table is None:
        return
    counts = {name: values[name].shape[1] for name in (*PREFIX_TOKENS, *REGISTERS) if name in values}
    rows, columns = fields["grid_size"]
    here = table.shape[1] - rows * columns
    there = _num_prefix_positions(format, counts, here, (rows, columns))
    if there > here:
        table = np.insert(table, [here] * (there - here), 0, axis=1)
    else:
        for name, rows in rows_of_tokens(table[:, :here], counts, there):
            values[name] = values[name] + rows
        table = np.delete(table, range(there, here), axis=1)
    values["position_embedding/embeddings"] = table


def _refusal(format, model, what, hint=""):
    """Returns the error for a model with a property that a format cannot express."""
    return ValueError(
        f"The format {format!r} cannot express that model {model.name!r} has {what}. Nothing was written.{hint}"
    )


def _check(model, format, source, fields, variables, allow, settings_are_stored):
    """Raises ValueError if the library that reads the format would compute other outputs than the model."""
    # Only older versions of timm have a layer pre_logits, so the format cannot store the weights of this layer.
    unknown = {"pre_logits/kernel"} if source.name == "timm" else set()
    nameless = [weight for weight in variables if source.find(weight) is None or weight in unknown]
    if nameless:
        raise ValueError(
            f"The format {format!r} cannot store {len(nameless)} weights of model {model.name!r}: "
            f"{', '.join(nameless[:10])}"
        )
    for what in _unwritten(model, format, source.name, fields):
        raise _refusal(format, model, what)
    num_heads, head_dim = head_sizes(fields)
    if format in ("timm", "huggingface") and num_heads and head_dim * num_heads != fields["hidden_dim"]:
        raise ValueError(
            f"The format {format!r} needs a num_heads that divides hidden_dim. Received: num_heads={num_heads} and "
            f"hidden_dim={fields['hidden_dim']}"
        )
    # Do not check the activation and the epsilon if the format is a folder, whose config.json stores them.
    names = ("activation", "layer_norm_epsilon", "resnet_epsilons", "pool_padding")
    settings = {name: getattr(source, name) for name in names[2 if settings_are_stored else 0 :]}
    if format == "timm" and num_heads and not settings_are_stored:
        settings |= timm_folder.timm_settings(config_of(model))
    allowed = allowed_settings(allow)
    for name, there in settings.items():
        here = fields.get(name)
        if name not in fields or name in allowed or there in (None, here):
            continue
        raise ValueError(
            f"Code that reads the format {format!r} computes with {name}={there!r}, and model {model.name!r} was built "
            f"with {name}={here!r}. Nothing was written. To write the weights nevertheless, pass allow=({name!r},) "
            f"(--allow {name})."
        )


def _unwritten(model, format, source, fields):
    """Yields the properties of a model that affect its outputs and that the source's files cannot store."""
    if find_normalization(model).folded:
        yield "preprocessing folded into its patch embedding"
    config, pooling = config_of(model), fields.get("pooling")
    merged, activation = getattr(config, "token_merging", 0), fields["classifier_activation"]
    if format in ("timm", "huggingface") and merged:
        yield f"token_merging={merged!r}. For the same weights without merging, build the model with token_merging=0"
    if format in ("timm", "huggingface") and activation != "linear":
        yield f"classifier_activation={activation!r}. Build the model without this activation"
    if source in ("timm", "timm_bit", "huggingface_bit") and len(fields.get("stages") or ()) > 4:
        yield "a ResNet of more than four stages. The library that reads the format would dilate the later stages"
    if config.family != "vit":
        return
    # Check these settings only for the official formats. `timm_folder` and `transformers_folder` check the settings for
    # timm and transformers.
    usual = {"rotary_embedding": None, "patch_bias": True, "qkv_bias": True, "gated_mlp": False}
    for name, value in usual.items() if source in ("official", "big_vision") else ():
        if fields[name] != value:
            yield f"{name}={fields[name]!r}"
    # If a file contains no position table, big_vision uses sine-cosine positions, and other code bases use none.
    if config.position_embedding == ("none" if source == "big_vision" else "sincos2d"):
        yield f'position_embedding="{config.position_embedding}"'
    if pooling == "none" or (pooling == "token_gap" and source != "dinov2"):
        yield f'pooling="{pooling}"'
    if pooling == "gap" and config.class_token and not config.norm_after_pooling and source != "timm":
        yield 'pooling="gap" and a class token'
    if format == "timm":
        yield from timm_folder.unwritten(config)


def _arrays(source, values, fields):
    """Returns {key: array}. The weights that one array of the file contains, such as Q, K and V, are concatenated."""
    parts = {}
    for weight, value in values.items():
        name = source.find(weight)
        for key, array in zip(name.keys, name.codec.to_file(value, head_sizes(fields)), strict=True):
            parts.setdefault(key, {})[name.codec.part] = array
    return {
        key: np.concatenate([found[i] for i in sorted(found)]) if len(found) > 1 else found[min(found)]
        for key, found in parts.items()
    }


def _facts(model, record):
    """Returns the metadata that `from_pretrained` cannot derive from the arrays."""
    return {
        "config": record.to_dict(),
        "grid": current_fields(model).get("grid_size"),
        "image_size": None if None in model.input_shape[1:3] else model.input_shape[1:3],
        "preprocessing": dataclasses.asdict(find_normalization(model).preprocessing),
        "version": __version__,
    }


def _record(model, fields):
    """Returns a model's config, corrected for a head that the user has replaced, and for layers that were removed."""
    config, layers = config_of(model), {layer.name: layer for layer in model.layers}
    changes = {name: fields[name] for name in ("num_classes", "classifier_activation")}
    for name, layer in (("projection_dim", "projection"), ("representation_size", "pre_logits")):
        if getattr(config, name, None) is not None and layer not in layers:
            changes[name] = None
    if len(config.class_names or ()) != fields["num_classes"]:
        changes["class_names"] = None
    if getattr(config, "return_both_heads", False):
        changes["return_both_heads"] = fields["num_classes"] > 0
    return config.replace(**changes)
