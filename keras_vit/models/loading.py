"""Loads checkpoints into models with the same settings."""

import dataclasses
import math
import os
from collections.abc import Sequence

import keras

from keras_vit import arguments
from keras_vit.config import checked_activation, config_of
from keras_vit.models.catalog import FAMILIES, identify, read_config
from keras_vit.models.coatnet.checkpoint import table_grids
from keras_vit.models.graph import activation_behind
from keras_vit.models.saved import SavedModel, saved_file
from keras_vit.models.vit.checkpoint import positions_for
from keras_vit.weights import hub
from keras_vit.weights.load import Layout, Plan
from keras_vit.weights.read import check_sha256, open_checkpoint
from keras_vit.weights.read.folders import ShardedFile
from keras_vit.weights.report import LoadReport
from keras_vit.weights.tokens import weights_by_path

# Settings that are not in `Family.settings`. `load_weights` checks these only if the file contains them.
_SETTINGS = ("preprocessing", "classifier_activation", "token_merging", "class_names", "task")
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

    If a weight of the file or of the model would be left over, nothing is loaded. Position embeddings are resized as in
    the code that wrote the file. The kernel of the patch embedding is resized by FlexiViT's pseudo-inverse resize. If
    the numbers of image channels differ, the kernel's channels are summed for a model of 1 channel, and tiled and
    rescaled for a model of several. If only the file has position embeddings for the tokens before the patches, these
    embeddings are added to the tokens. If only the model has such embeddings, they are set to zero. If the numbers of
    classes differ, the head is set to zero, and a pre_logits layer that only the file has is left out.

    Args:
        model: A model of any family of this package except VT-ResNet.
        path: Path of a file or folder, or name of a model on a hub. The file is an .npz of the official code, of
            big_vision or of BiT; a .safetensors or .pth state dict; a .weights.h5 or .keras file of Keras; or the .h5
            of an EfficientNet from keras.applications. Code in a .pth file is not run. The folder is from timm, from
            Hugging Face or from a training run. If the checkpoint is from TensorFlow 1, pass its folder or its .index
            file, and install TensorFlow. A name on a hub is `hf://owner/name[@revision][/file or folder]` or
            `kaggle://owner/model/framework/variation[/version][/file]`. The revision is a branch, tag or commit. The
            files of a hub are downloaded once.
        source: The code base that wrote the file: "official", "big_vision", "bit", "timm", "timm_bit", "timm_coatnet",
            "timm_efficientnet", "deit", "dino", "dinov2_original", "dinov3_original", "mae", "ijepa", "eva02",
            "openai_clip", "open_clip", "open_clip_timm", "efficientnet" (the official checkpoints),
            "keras_applications" or "keras". Files of transformers have the sources "huggingface" (ViT, DeiT and
            I-JEPA), "dinov2", "dinov3", "siglip", "clip" or "huggingface_bit". None: recognised by the file's keys.
        skip: Names of layers to skip in the file and in the model, such as ("head",). A skipped head is set to zero.
            Other skipped layers keep the model's weights.
        allow: Names of settings in which the model may differ from the file, although they change the outputs:
            "activation", "layer_norm_epsilon", "pooling", "position_embedding", "rotary_embedding", "rotary_grid",
            "key_bias", "resnet_epsilons", "pool_padding", "padding", "batch_norm_epsilon", "preprocessing",
            "classifier_activation" or "token_merging". The last three are compared only if the file contains them.
        grid_size: (rows, columns) of the file's position embeddings, if their grid is not square and the file does not
            contain the grid.
        position_interpolation: The resizing method for position embeddings: "linear" (official code, big_vision),
            "bicubic" (DeiT, Hugging Face), "bicubic_antialias" (timm) or "bicubic_offset" (DINO). The position tables
            of CoAtNet need "bilinear" (its paper) or "geometric" (timm). None: as in the source's code.
        sha256: The expected SHA-256, in hexadecimal digits. None: the SHA-256 in the file `<path>.sha256` or in Hugging
            Face's cache. If no SHA-256 is found, and the file format has no checksums, a file with a weight above
            10,000 or below -10,000 is refused as damaged.

    Returns:
        A `LoadReport`, which prints what was loaded, resized, adapted and skipped.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, has an unknown source, contains NaN or was trained with other settings, or
            if the model's preprocessing is folded. The error is a `WeightsMismatchError` if the file's weights do not
            fit the model. The model stays unchanged.
        ImportError: If the file needs PyTorch, which is not installed.

    Example:

    >>> model = keras_vit.ViTB16(image_size=384, num_classes=17)
    >>> print(keras_vit.load_weights(model, "ViT-B_16.npz"))  # doctest: +SKIP

    Reference: arXiv 2010.11929, section 3.2; the official code's `load_pretrained`.
    """
    arguments.each(arguments.names, skip=skip, allow=allow)
    refuse_own_family(model)
    _, file = identify(open_file(path, sha256), source)
    found = read_config(file, grid_size)
    options = {"skip": skip, "allow": allow, "position_interpolation": position_interpolation}
    return load_file(model, file, found, whole=True, **options)


def open_file(path, sha256=None):
    """Opens a path, or a model name on a hub, as a `WeightsFile`. Raises if the file's SHA-256 is not `sha256`."""
    path = os.fsdecode(hub.local_path(arguments.path("path", path)))
    if (saved := saved_file(path)) is not None:
        if sha256 is not None:
            check_sha256(saved, sha256)
        return SavedModel(saved)
    file = open_checkpoint(path)
    if sha256 is not None:
        check_sha256(file.path, sha256)
        # The SHA-256 of an index file does not cover the files that the index names, so these are not verified yet.
        file.verified |= not isinstance(file, ShardedFile)
    return file


def load_file(model, file, found, *, skip=(), allow=(), position_interpolation=None, whole=False):
    """Loads a `CanonicalFile` into a model. `found` are the file's config fields; `whole` is as in `Plan.load`."""
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
        # If the file's head or class token is not loaded, these settings may differ.
        exempt |= {"pooling", "classifier_activation", "class_names", "task"}
    if "position_embedding" in plan.dropped:
        exempt.add("position_embedding")
    if found.get("key_bias") is False:
        # The file has no key biases, so the model's key biases are set to zero, which gives the same outputs.
        exempt.add("key_bias")
    _check_settings(model, file, found, here, exempt)
    return plan.load(whole)


def _check_settings(model, file, found, here, exempt):
    """Raises ValueError if settings of a file differ from `here`, the config fields of the model. Ignores `exempt`."""
    names = [name for name in FAMILIES[file.source.family].settings if name not in exempt]
    # Compare these settings only if the file contains them, because they differ between the models of a source.
    names += [name for name in _SETTINGS if name not in exempt and found.is_stated(name)]
    theirs, ours = {}, {}
    for name, there, own in found.differences(here, names):
        if name == "preprocessing":
            there, own = _differing_parts(there.for_channels(here["in_channels"]), own, found, here)
        if name == "class_names":
            if not arguments.names_differ(there, own):
                continue
            there, own = (f"{list(names[:5])} ..." for names in (there, own))
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
    """Returns the fields in which the preprocessing of a file (`there`) and of a model (`own`) differ, as two dicts.

    Only fields that the file contains are compared, and crop fields only if the image sizes are equal.
    """
    there, own = vars(there), vars(own)
    sized = found.get("image_size") is not None and arguments.image_size(found.get("image_size")) == here["image_size"]
    stated = there if found.stated_constants is None else found.stated_constants

    def differs(name):
        a, b = there[name], own[name]
        if name in ("mean", "std"):
            # A single value stands for all channels, so repeat it before the comparison.
            a, b = (x * len(y) if len(x) == 1 else x for x, y in ((a, b), (b, a)))
        return a != b and (sized or name not in _CROP)

    names = [name for name in there if name in stated and differs(name)]
    return {name: there[name] for name in names}, {name: own[name] for name in names}


def _layout(config, fields, grid, num_prefix_positions, position_interpolation, tables):
    """Returns the `Layout` of a model or checkpoint. `config` is a model's config, or a checkpoint's config class."""
    sizes = {name: fields.get(name) for name in config.sizes}
    layout = *head_sizes(fields), fields["num_classes"], grid, num_prefix_positions, position_interpolation, tables
    return Layout(*layout, sizes, config.describe(fields))


def head_sizes(fields):
    """Returns (num_heads, head_dim) from a dict of config fields; both are None if the fields have no num_heads."""
    heads, width = fields.get("num_heads"), fields.get("hidden_dim")
    return heads, heads and width and width // heads


def refuse_own_family(model):
    """Raises ValueError if only this package, and no other code base, has models of this model's family."""
    if not FAMILIES[config_of(model).family].sources:
        raise ValueError(
            "Expected a model of a family that other code bases have too. Received: model "
            f"{model.name!r} of family {config_of(model).family!r}. Use model.save and keras_vit.from_pretrained, or "
            "model.save_weights and model.load_weights."
        )


def current_fields(model):
    """Returns the fields of a model's config, corrected for layers that the user has changed or removed."""
    config, names = config_of(model), {layer.name: layer for layer in model.layers}
    if config.block_names[0] not in names:
        raise ValueError(
            f"Expected a model built by keras_vit, with a layer {config.block_names[0]}. Received: model "
            f"{model.name!r} with the layers {', '.join(names)}. If one of these layers is the ViT, pass this layer: "
            "model.get_layer(...)."
        )
    head = names.get("head")
    fields = {**vars(config), "num_classes": getattr(head, "units", 0)}
    # A layer after the head, such as a Softmax, may be the activation.
    activation = activation_behind(model.outputs[0]) or getattr(head, "activation", None)
    fields["classifier_activation"] = checked_activation("classifier_activation", activation)
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
    """Returns the names of the settings that change the outputs and that the arrays of a weight file do not show.

    The settings of all families are included.
    """
    return sorted({*_SETTINGS, *(name for family in FAMILIES.values() for name in family.settings)})


def allowed_settings(allow):
    """Returns `allow`, a string or several, as a tuple; raises ValueError for an unknown name."""
    allow, known = (allow,) if isinstance(allow, str) else tuple(allow), all_settings()
    if unknown := [name for name in allow if name not in known]:
        raise arguments.invalid("allow", f"names out of {', '.join(known)}", unknown)
    return allow


def describe(path, source=None):
    """Returns a text about a checkpoint, with lines for its source, sizes, settings, preprocessing and arrays."""
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
