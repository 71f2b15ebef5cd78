"""Reads models from checkpoints, .keras files and training runs."""

import dataclasses
import os
import re
from collections.abc import Sequence

import keras

from keras_vit import arguments
from keras_vit.config import DEFAULT_IMAGE_SIZE
from keras_vit.files import absent
from keras_vit.models import zoo
from keras_vit.models.catalog import FAMILIES
from keras_vit.models.checkpoint import Checkpoint
from keras_vit.models.families import FAMILIES as FAMILIES_OF_FILES
from keras_vit.models.family import changed, config_from
from keras_vit.models.fields import check_positions
from keras_vit.models.loading import load_checkpoint
from keras_vit.models.model_settings import SETTINGS, name_of
from keras_vit.models.saved import read_saved, saved_file
from keras_vit.models.vit.variants import architecture_of
from keras_vit.weights import hub

# Variants whose sizes are overridden, where none has the file's; that of CoAtNet has none of the optional layers.
_VARIANTS = {"vit": "B/16", "bit": "R50x1", "coatnet": "coatnet_nano_rw", "efficientnet": "B0"}


def from_pretrained(
    path: str | os.PathLike,
    *,
    image_size: int | tuple[int, int] | tuple[None, None] | None = None,
    num_classes: int | None = None,
    source: str | None = None,
    skip: str | Sequence[str] = (),
    grid_size: tuple[int, int] | None = None,
    position_interpolation: str | None = None,
    sha256: str | None = None,
    **kwargs,
) -> keras.Model:
    """Builds a model from a file: of this package, Keras, timm, transformers or a paper's own code.

    The sizes are those of the weights' shapes, the settings and the preprocessing those of the file. A .keras file and
    the folder of a training run give the saved model, at another `image_size` or with another `num_classes` if asked.

    Settings that change the outputs are never guessed: pass those that neither the file nor its source determines. For
    a timm folder, they follow from its architecture's name and its `model_args`; unsupported ones are refused. The
    logger "keras_vit" reports what was loaded, as a warning if the model differs from the file.

    Without a head, the output is the one that its code pools: transformers' `pooler_output`, `image_embeds` of CLIP
    with a projection, the normed class token where there is no pooler (MAE, DeiT), the mean of the patches of I-JEPA.

    Args:
        path: Path or hub's name as in `load_weights`; a .keras file; the folder of a training run; or the name of a
            published checkpoint, such as "ViTB16.imagenet21k" (see `list_weights`), which is downloaded once.
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels. None: as in the file, or
            224 if it does not say.
        num_classes: Int, 0 for no head. None: as in the file. A different number gives a new head of zeros, without the
            file's pre_logits.
        source, skip, grid_size, position_interpolation, sha256: As in `load_weights`. Models of any size also use
            `position_interpolation` at run time.
        **kwargs: Other arguments of the family's builder, such as `ViT`, which override the file. None stands for the
            file's value, except for fields that may be None, such as `representation_size`.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, its source unknown, or a setting missing: the error names what to pass.
        ImportError: If the file needs PyTorch, or a hub its client, and it is not installed.
        OSError: If a download fails: PermissionError without access, else ConnectionError.

    Example:

    >>> model = keras_vit.from_pretrained("ViT-B_16.npz", image_size=384)  # doctest: +SKIP
    >>> model = keras_vit.from_pretrained("hf://google/vit-base-patch16-224")  # doctest: +SKIP
    """
    row = zoo.find(os.fspath(path))
    local = _local_path(path, row)
    if (file := saved_file(local)) is not None:
        of_checkpoints = {"source": source, "skip": skip, "grid_size": grid_size, "sha256": sha256}
        if given := [name for name, value in of_checkpoints.items() if value]:
            raise ValueError(f"Expected no {' and '.join(given)} with {file!r}, a whole model of Keras.")
        changes = {"image_size": image_size, "num_classes": num_classes}
        return read_saved(file, {**kwargs, **changes, "position_interpolation": position_interpolation})
    checkpoint = Checkpoint(local, source, grid_size, sha256)
    family = FAMILIES[checkpoint.family]
    given_variant = kwargs.pop("variant", None)
    given, options = family.split({**kwargs, "image_size": image_size, "num_classes": num_classes}, "from_pretrained")
    # The variant of these sizes, or one whose sizes are overridden.
    known = name_of(checkpoint.sizes)
    variant = given_variant or known or _VARIANTS[checkpoint.family]
    for prefix in ("ViT-", "BiT-", "EfficientNet-"):
        variant = variant.replace(prefix, "")
    name = family.config.model_name_of(variant) if known or given_variant or family.name == "bit" else family.name
    options = {"name": checkpoint.stated.fields.get("name", name), **options}
    # A given variant sets what the file does not state.
    defaults = _sizes(family, variant) if given_variant else None
    return _load(checkpoint, row, family, variant, given, options, skip, position_interpolation, defaults=defaults)


def load_variant(family, variant, weights, given, options, defaults, function=None):
    """Builds a variant and loads weights into it.

    The sizes are the variant's. The other settings are those of `given`, else of the file, else of `defaults`.
    """
    names = {"vit": architecture_of(variant)}
    architecture = function or names.get(family.name, f"{family.builder}{variant}")
    row = zoo.find(f"{architecture}.{weights}") or zoo.find(os.fspath(weights))
    checkpoint = Checkpoint(zoo.local_path(weights, architecture))
    if checkpoint.family != family.name:
        expected = f"weights of a {family.builder} for keras_vit.{function or family.builder}"
        raise ValueError(f"Expected {expected}. Received: {checkpoint.path!r}, a model of family {checkpoint.family!r}")
    if checkpoint.source.name == "keras":
        # Such a file was written by a model of this variant, and contains no settings.
        defaults = {**dataclasses.asdict(family.config.from_variant(variant)), **defaults}
    sizes = _sizes(family, variant)
    return _load(checkpoint, row, family, variant, given, options, sizes=sizes, defaults=defaults)


def _sizes(family, variant):
    """Returns the fields that a variant sets, as the config has them."""
    config = family.config.from_variant(variant)
    return {name: getattr(config, name) for name in family.config.sizes_of(variant)}


def _load(
    checkpoint, row, family, variant, given, options, skip=(), position_interpolation=None, sizes=None, defaults=None
):
    """Builds the model of an open checkpoint: fields from `given`, `sizes`, the file, and `defaults`, in this order."""
    fields = dict(checkpoint.stated.fields)
    fields.pop("name", None)
    if row is not None:
        fields |= _of_row(row)
    fields = {**(defaults or {}), **fields}
    num_classes_there = fields["num_classes"]
    fields |= sizes or {}
    _check_unknown(checkpoint, fields, given, *(["variant"] if sizes or defaults else []))
    if "preprocessing" in given:
        base = fields.get("preprocessing", family.config.from_variant(variant).preprocessing)
        given = {**given, "preprocessing": changed(base, given["preprocessing"])}
    skipped = (skip,) if isinstance(skip, str) else skip
    if "head" in skipped or given.get("num_classes", num_classes_there) != num_classes_there:
        for name in ("class_names", "task", "classifier_activation"):
            fields.pop(name, None)
        if "head" not in skipped and family.name == "vit":
            fields.pop("representation_size", None)
    assumed = {}
    if "image_size" not in {**fields, **given}:
        if "position_embedding/embeddings" in checkpoint.weights:
            raise ValueError(
                f"The number of position embeddings in {checkpoint.path!r} is not a square: pass "
                "grid_size=(rows, columns) of the file and, for another size, image_size."
            )
        size = DEFAULT_IMAGE_SIZE if checkpoint.source.family is None else "that of the variant"
        assumed["image_size"] = f"{size}, not stated in the file"
    if checkpoint.source.family is None:
        fields.setdefault("image_size", DEFAULT_IMAGE_SIZE)
    if family.name == "vit":
        if not {"image_size", "grid_size", "patch_size", "position_embedding"} & set(given):
            check_positions(checkpoint, fields)
        _fit_any_size(checkpoint, fields, given, position_interpolation)
        if not all(
            {**fields, **given}.get(n, True) for n in ("num_classes", "distillation_token", "distillation_head")
        ):
            fields.pop("return_both_heads", None)
    if family.name == "coatnet":
        _fit_tables(fields, given, position_interpolation)
    model = family.make(config_from(family, variant, {**fields, **given}), **options)
    settings = FAMILIES_OF_FILES.get(checkpoint.family)
    allow = [name for name in (SETTINGS if settings is None else settings.SETTINGS) if name in given]
    report = load_checkpoint(model, checkpoint, skip=skip, allow=allow, position_interpolation=position_interpolation)
    report.assumed.update(assumed)
    report.log()
    return model


def _fit_tables(fields, given, position_interpolation):
    """Keeps the size of a CoAtNet's tables in a model of any size, so that they are resized only once."""
    any_size = (None, None)
    file_size = fields.get("image_size", any_size)
    of_any = arguments.image_size(given.get("image_size", file_size)) == any_size
    if not of_any:
        fields["table_image_size"] = None
    elif file_size != any_size:
        fields["table_image_size"] = file_size
    if position_interpolation is not None:
        fields["position_interpolation"] = position_interpolation


def _local_path(path, row):
    if row is not None:
        return zoo.fetch(row)
    path = hub.local_path(os.fspath(path))
    if not os.path.exists(path):
        meant = arguments.nearest(path, zoo.ROWS, most=2)
        if not meant and re.fullmatch(r"[\w.-]+/[\w.-]+", path):
            meant = f". On the Hugging Face hub it would be 'hf://{path}'"
        raise FileNotFoundError(
            "Invalid value received for argument `path`. Expected a file or folder of weights, hf://owner/name, or "
            f'the name of a published checkpoint out of `list_weights`, as "ViTB16.imagenet21k". Received: '
            f"{absent(path)}{meant}"
        )
    return path


def _of_row(row):
    """The settings of a published checkpoint that its file does not contain."""
    found = {"preprocessing": row.preprocessing}
    if row.source == "bit":
        # As in the code published with BiT's weights.
        found |= {"image_size": row.resolution, "pool_padding": "zeros"}
    return found


def _check_unknown(checkpoint, fields, given, *known):
    """Raises if neither the file nor the caller sets a field that changes the outputs."""
    known = {*fields, *given, *known}
    part = given.get("preprocessing")
    if isinstance(part, dict) and not {"mean", "std", "interpolation", "crop_fraction"} <= part.keys():
        # A part of an unknown preprocessing leaves the rest unknown.
        known -= {"preprocessing"} - {*fields}
    unknown = {name: why for name, why in checkpoint.stated.unknown.items() if name not in known}
    if unknown:
        listed = "".join(f"\n  {name}: {why}" for name, why in unknown.items())
        raise ValueError(
            f"{checkpoint.path!r} does not state {len(unknown)} of the settings that change its outputs. "
            f"Pass {', '.join(f'{name}=' for name in unknown)} to from_pretrained, or each by --set on the command "
            f"line:{listed}"
        )


def _fit_any_size(checkpoint, fields, given, position_interpolation):
    """Keeps the file's grid in a model of any size, so that positions are resized only once."""
    any_size = (None, None)
    of_any = arguments.image_size(given.get("image_size", fields["image_size"])) == any_size
    if of_any and fields["image_size"] != any_size:
        fields |= {"grid_size": checkpoint.grid_size, "position_interpolation": checkpoint.position_interpolation}
    if of_any and position_interpolation is not None:
        fields["position_interpolation"] = position_interpolation
    if not of_any:
        fields["grid_size"] = None
    # Set explicitly, since the number of heads may not divide hidden_dim.
    heads = arguments.positive_int("num_heads", given.get("num_heads", fields.get("num_heads")))
    fields["head_dim"] = {**fields, **given}["hidden_dim"] // heads
