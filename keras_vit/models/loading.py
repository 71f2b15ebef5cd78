"""Loads checkpoints into models of the same settings."""

import dataclasses
import math
import os
from collections.abc import Sequence

import keras

from keras_vit import arguments
from keras_vit.config import config_of
from keras_vit.models.catalog import FAMILIES, identify, read_config
from keras_vit.models.coatnet.checkpoint import table_grids
from keras_vit.models.saved import SavedModel, saved_file
from keras_vit.models.vit.checkpoint import positions_for
from keras_vit.weights import hub
from keras_vit.weights.load import Layout, Plan
from keras_vit.weights.read import check_sha256, open_checkpoint
from keras_vit.weights.read.folders import ShardedFile
from keras_vit.weights.report import LoadReport
from keras_vit.weights.tokens import weights_by_path

# Settings of all families that are compared only if a file contains them.
_SETTINGS = ("preprocessing", "classifier_activation", "token_merging")
# The fields of a preprocessing that depend on the image size.
_CROP = ("crop_fraction", "resize_mode", "crop_rounding")


def load_weights(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    source: str | None = None,
    skip: str | Sequence[str] = (),
    allow: str | Sequence[str] = (),
    grid_size: tuple[int, int] | None = None,
    position_interpolation: str | None = None,
    sha256: str | None = None,
) -> LoadReport:
    """Loads a checkpoint from any supported code base into a model of this package.

    Nothing is loaded unless every weight of the file and the model is accounted for. Position embeddings are resized as
    in the source's code, and the patch-embedding kernel by FlexiViT's pseudo-inverse resize. Its channels are summed
    for 1, or tiled and rescaled for N. Prefix tokens absorb position embeddings that the model's table has no rows for,
    and missing rows are zero. If the numbers of classes differ, the head is set to zero, and a pre_logits layer that
    only the file has is left out.

    Args:
        model: A model of any family of this package except VT-ResNet.
        path: Path of the file. It may be an .npz of the official code, big_vision or BiT, or a state dict of timm or
            DeiT as .safetensors or .pth (no code in it is run). It may be a folder of timm or Hugging Face, Keras'
            .weights.h5, or weights of EfficientNets of keras.applications (.h5). A checkpoint of TensorFlow 1 is given
            by its folder or its .index, and needs TensorFlow. A .keras file, or the folder of a training run, contains
            a model of this package. A name of a hub is downloaded once:
            `hf://owner/name[@revision][/file or folder]` (a branch, tag or commit) or
            `kaggle://owner/model/framework/variation[/version][/file]`.
        source: "official", "big_vision", "bit", "timm", "timm_bit", "timm_coatnet", "timm_efficientnet", "deit",
            "huggingface" (its ViT and DeiT), "huggingface_bit", "dinov2", "siglip", "dinov3", "clip" (all Hugging
            Face's), "dino", "dinov2_original", "dinov3_original", "mae", "ijepa", "eva02", "openai_clip", "open_clip",
            "open_clip_timm", "efficientnet" (the official checkpoints), "keras_applications" or "keras". None:
            recognised by the file's keys.
        skip: Names of layers to leave out on both sides, such as ("head",). A skipped head is set to zero; other
            layers keep the model's weights.
        allow: Settings that may differ although they change the outputs: "activation", "layer_norm_epsilon", "pooling",
            "position_embedding", "rotary_embedding", "rotary_grid", "key_bias", "resnet_epsilons", "pool_padding",
            "padding", "batch_norm_epsilon", and, if the file contains them, "preprocessing", "classifier_activation"
            and "token_merging".
        grid_size: (rows, columns) of the file's position embeddings, if neither square nor stated in the file.
        position_interpolation: "linear" (official code, big_vision), "bicubic" (DeiT, Hugging Face),
            "bicubic_antialias" (timm) or "bicubic_offset" (DINO); for the tables of CoAtNet "bilinear" (its paper) or
            "geometric" (timm). None: as in the source's code.
        sha256: The expected SHA-256, in hexadecimal digits. None: as in `<path>.sha256` or Hugging Face's cache. If
            there is no SHA-256 and the format has no checksums, files with a weight above 10,000 or below -10,000 are
            refused.

    Returns:
        A `LoadReport`, which prints what was loaded, resized, adapted and skipped.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, has an unknown source, contains NaN or was trained with other settings, or
            the model's preprocessing is folded. `WeightsMismatchError` if it does not fit. The model stays unchanged.
        ImportError: If the file needs PyTorch, which is not installed.

    Example:

    >>> model = keras_vit.ViTB16(image_size=384, num_classes=17)
    >>> print(keras_vit.load_weights(model, "ViT-B_16.npz"))  # doctest: +SKIP

    Reference: arXiv 2010.11929, section 3.2; the official code's `load_pretrained`.
    """
    arguments.each(arguments.names, skip=skip, allow=allow)
    _, file = identify(open_file(path, sha256), source)
    found = read_config(file, grid_size)
    refuse_own_family(model)
    options = {"skip": skip, "allow": allow, "position_interpolation": position_interpolation}
    return load_file(model, file, found, whole=True, **options)


def open_file(path, sha256=None):
    """Returns the `WeightsFile` of a path or of a hub's name, checked against a SHA-256."""
    path = os.fsdecode(hub.local_path(arguments.path("path", path)))
    if (saved := saved_file(path)) is not None:
        if sha256 is not None:
            check_sha256(saved, sha256)
        return SavedModel(saved)
    file = open_checkpoint(path)
    if sha256 is not None:
        check_sha256(file.path, sha256)
        # The SHA-256 of an index does not cover the files that it names.
        file.verified |= not isinstance(file, ShardedFile)
    return file


def load_file(model, file, found, *, skip=(), allow=(), position_interpolation=None, whole=False):
    """Loads a `CanonicalFile` with this `Found`; the rest is as in `load_weights`. `whole` is as in `Plan.load`."""
    if any(getattr(layer, "folded", False) for layer in model.layers):
        raise ValueError(
            f"Expected a model whose preprocessing is not folded into its weights. Received: model {model.name!r}. "
            "Load the weights into the model that fold_preprocessing was called on, and fold it again."
        )
    here, config, sizes = current_fields(model), config_of(model), fields_of_file(file, found)
    positions = {layer.name: layer for layer in model.layers}.get("position_embedding")
    layout = _layout(
        config,
        here,
        here.get("grid_size"),
        getattr(positions, "num_prefix_positions", 0),
        getattr(config, "position_interpolation", "linear"),
        table_grids(config, weights_by_path(model)),
    )
    prefix, grid = positions_for(file, found.positions, layout.grid, layout.num_prefix_positions)
    family = FAMILIES[file.source.family]
    there = _layout(family.config, sizes, grid, prefix, found.position_interpolation, found.tables)
    plan = Plan(model, file, there, layout, skip, position_interpolation)
    exempt = set(allowed_settings(allow))
    if "head/kernel" not in plan.rows or "class_token" in plan.dropped:
        # These settings may differ with a new head, or without the class token.
        exempt |= {"pooling", "classifier_activation"}
    if "position_embedding" in plan.dropped:
        exempt.add("position_embedding")
    if found.get("key_bias") is False:
        # The biases of the keys are set to zero, which computes the same.
        exempt.add("key_bias")
    _check_settings(model, file, found, here, exempt)
    return plan.load(whole)


def _check_settings(model, file, found, here, exempt):
    """Raises if a file was trained with other settings than a model, whose fields are `here`."""
    names = [name for name in FAMILIES[file.source.family].settings if name not in exempt]
    # A source's published models have these settings, but its other models may differ.
    names += [name for name in _SETTINGS if name not in exempt and found.is_stated(name)]
    theirs, ours = {}, {}
    for name, there, own in found.differences(here, names):
        if name == "preprocessing":
            there, own = _differing_parts(there.for_channels(here["in_channels"]), own, found, here)
        if there not in ({}, own):
            theirs[name], ours[name] = there, own
    if theirs:
        trained, built = (", ".join(f"{name}={value!r}" for name, value in each.items()) for each in (theirs, ours))
        raise ValueError(
            f"{file.path!r} was trained with {trained}, and model {model.name!r} was built with {built}. Nothing was "
            f"loaded. Build the model with {trained}, or call load_weights with allow={tuple(theirs)!r} to load the "
            "file nevertheless."
        )


def _differing_parts(there, own, found, here):
    """Returns the stated fields of two preprocessings that differ, as dicts; the crop may differ if the size does."""
    there, own = vars(there), vars(own)
    sized = found.get("image_size") is not None and arguments.image_size(found.get("image_size")) == here["image_size"]
    stated = there if found.stated_constants is None else found.stated_constants

    def differs(name):
        a, b = there[name], own[name]
        if name in ("mean", "std"):
            # A single value stands for all channels.
            a, b = (x * len(y) if len(x) == 1 else x for x, y in ((a, b), (b, a)))
        return a != b and (sized or name not in _CROP)

    names = [name for name in there if name in stated and differs(name)]
    return {name: there[name] for name in names}, {name: own[name] for name in names}


def _layout(config, fields, grid, num_prefix_positions, position_interpolation, tables):
    """Returns the `Layout` of a model or checkpoint with these fields; `config` is a config or its class."""
    sizes = {name: fields.get(name) for name in config.sizes}
    layout = *head_sizes(fields), fields["num_classes"], grid, num_prefix_positions, position_interpolation, tables
    return Layout(*layout, sizes, config.describe(fields))


def head_sizes(fields):
    """Returns (num_heads, head_dim) from a dict of fields; None if there are no heads."""
    heads, width = fields.get("num_heads"), fields.get("hidden_dim")
    return heads, heads and width and width // heads


def refuse_own_family(model):
    """Raises if no other code base has models of the family of a model."""
    if not FAMILIES[config_of(model).family].sources:
        raise ValueError(
            "Expected a model of a family whose weights other code bases have too. Received: model "
            f"{model.name!r} of family {config_of(model).family!r}. Use model.save and keras_vit.from_pretrained, or "
            "model.save_weights and model.load_weights."
        )


def current_fields(model):
    """Returns the fields of a model's config, updated for layers that its user may have changed."""
    config, names = config_of(model), {layer.name: layer for layer in model.layers}
    if config.block_names[0] not in names:
        raise ValueError(
            f"Expected a model of this package's builders, with a layer {config.block_names[0]}. Received: model "
            f"{model.name!r} with the layers {', '.join(names)}. If one of them holds the ViT, pass that: "
            "model.get_layer(...)."
        )
    fields = {**vars(config), "num_classes": getattr(names.get("head"), "units", 0)}
    if config.family == "vit":
        fields["num_layers"] = sum(name in names for name in config.block_names)
        fields["grid_size"] = config.grid if "position_embedding" in names else None
        fields["pooling"] = config.pooling if "pooling" in names else "none"
        if config.stages is None:
            del fields["resnet_epsilons"]
    return fields


def fields_of_file(file, found):
    """Returns the config fields of a checkpoint; unknown fields, and an uncertain num_heads, are None."""
    config = FAMILIES[file.source.family].config
    fields = {field.name: found.get(field.name) for field in dataclasses.fields(config)}
    if not found.certain("num_heads"):
        fields["num_heads"] = None
    if config.family == "vit":
        fields["grid_size"] = found.positions.grid
    return fields


def all_settings():
    """Returns the settings of all families that change the outputs, but do not follow from the arrays."""
    return sorted({*_SETTINGS, *(name for family in FAMILIES.values() for name in family.settings)})


def allowed_settings(allow):
    """Returns the names in `allow`, a string or several; raises unless they are settings of some family."""
    allow, known = (allow,) if isinstance(allow, str) else tuple(allow), all_settings()
    if unknown := [name for name in allow if name not in known]:
        raise arguments.invalid("allow", f"names out of {', '.join(known)}", unknown)
    return allow


def describe(path, source=None):
    """Describes a checkpoint: path, source, sizes, settings, preprocessing and arrays, one per line."""
    family, file = identify(open_file(path), source)
    found = read_config(file)
    count = sum(math.prod(shape) for shape in file.shapes.values())
    unknown = [key for key in file.shapes if file.source.find_weight_path(key) is None]
    rows = {
        "file": file.path,
        "source": file.source.name,
        "model": family.config.describe(fields_of_file(file, found)),
        "holds": f"{len(file.shapes)} arrays, {count:,} parameters",
        **{name: found.get(name) for name in family.settings if name in found.values},
        **({} if "preprocessing" not in found.values else dataclasses.asdict(found.get("preprocessing"))),
        "positions": f"{found.positions.num_prefix} of prefix tokens",
        "unknown keys": ", ".join(unknown) or "none",
        "to pass": ", ".join(found.unknown) or "nothing",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows.items())
