"""Reads models from files of weights, .keras files and the folders of training runs."""

import os
import re
from collections.abc import Mapping, Sequence

import keras

from keras_vit import arguments
from keras_vit.config import DEFAULT_IMAGE_SIZE
from keras_vit.files import absent
from keras_vit.models import zoo
from keras_vit.models.catalog import CHECKPOINTS, FAMILIES, identify, read_config
from keras_vit.models.checkpoint import open_file
from keras_vit.models.family import changed, config_from
from keras_vit.models.loading import load_file
from keras_vit.models.model_settings import name_of, sizes_of_file
from keras_vit.models.saved import read_saved, saved_file
from keras_vit.models.vit.checkpoint import check_positions
from keras_vit.models.vit.variants import architecture_of
from keras_vit.weights import hub
from keras_vit.weights.found import DEFAULT, KNOWN

# Variants whose sizes are overridden, where none has the file's; that of CoAtNet has none of the optional layers.
_VARIANTS = {"vit": "B/16", "bit": "R50x1", "coatnet": "coatnet_nano_rw", "efficientnet": "B0"}
# The fields of a preprocessing that are complete together.
_CONSTANTS = {"mean", "std", "interpolation", "crop_fraction"}


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
    A changed model has the `dtype` and the dropout rates that are passed, not the saved ones, and trains all weights.

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
    name, file = identify(open_file(local, sha256), source)
    family, found = FAMILIES[name], read_config(file, grid_size)
    chosen = kwargs.pop("variant", None)
    given, options = family.split({**kwargs, "image_size": image_size, "num_classes": num_classes}, "from_pretrained")
    if "class_names" in kwargs:
        # None leaves out names that do not fit.
        given["class_names"] = kwargs["class_names"]
    # The variant of these sizes, or one whose sizes are overridden.
    known = name_of(sizes_of_file(file, found))
    variant = re.sub("ViT-|BiT-|EfficientNet-", "", chosen or known or _VARIANTS[name])
    # No variant has patches that are not square.
    variant = re.sub(r"(/\d+)x\d+$", r"\1", variant)
    usual = family.config.model_name_of(variant) if chosen or known or name == "bit" else name
    options = {"name": found.get("name", usual), **family.config.training_options_of(variant), **options}
    if chosen:
        found.forget("variant")
    defaults = _sizes(family, variant) if chosen else {}
    return _build(file, found, family, variant, row, given, options, skip, position_interpolation, defaults=defaults)


def load_variant(family, variant, weights, given, options, defaults, function=None):
    """Builds a variant and loads weights into it.

    The sizes are the variant's. The other settings are those of `given`, else of the file, else of `defaults`.
    """
    architecture = function or (architecture_of(variant) if family.name == "vit" else f"{family.builder}{variant}")
    row = zoo.find(f"{architecture}.{weights}") or zoo.find(os.fspath(weights))
    name, file = identify(open_file(zoo.local_path(weights, architecture)))
    if name != family.name:
        expected = f"weights of a {family.builder} for keras_vit.{function or family.builder}"
        raise ValueError(f"Expected {expected}. Received: {file.path!r}, a model of family {name!r}")
    if file.source.name == "keras":
        # Such a file was written by a model of this variant, and contains no settings.
        defaults = {**vars(family.config.from_variant(variant)), **defaults}
    found = read_config(file, None)
    found.forget("variant")
    return _build(file, found, family, variant, row, given, options, sizes=_sizes(family, variant), defaults=defaults)


def _sizes(family, variant):
    """Returns the fields that a variant sets, as the config has them."""
    config = family.config.from_variant(variant)
    return {name: getattr(config, name) for name in family.config.sizes_of(variant)}


def _build(
    file, found, family, variant, row, given, options, skip=(), position_interpolation=None, *, sizes=(), defaults=()
):
    """Builds the model of an open file: fields from `given`, `sizes`, the file and `defaults`, in this order."""
    found.forget("name")
    assumed = _complete(found, family.name, row, given, skip)
    for name, value in dict(defaults).items():
        if name not in found.values:
            found.put(f"{DEFAULT} {variant}", certain=False, **{name: value})
    chosen = dict(given)
    part = given.get("preprocessing")
    if isinstance(part, Mapping):
        base = found.get("preprocessing", family.config.from_variant(variant).preprocessing)
        chosen["preprocessing"] = changed(base, part)
        if "preprocessing" in found.unknown and not part.keys() >= _CONSTANTS:
            # A part of an unknown preprocessing leaves the rest unknown.
            del chosen["preprocessing"]
    fields = found.resolve({**dict(sizes), **chosen})
    _fit_size(file, found, fields, given, position_interpolation)
    model = family.make(config_from(family, variant, fields), **options)
    allow = [name for name in CHECKPOINTS[family.name].SETTINGS if name in given]
    report = load_file(model, file, found, skip=skip, allow=allow, position_interpolation=position_interpolation)
    report.assumed.update(assumed)
    report.log()
    return model


def _complete(found, family, row, given, skip):
    """Adds what is known beside the file, and removes what does not apply; returns {field: value that is assumed}."""
    new_head = "head" in ((skip,) if isinstance(skip, str) else skip)
    if row is not None:
        found.put(f"{KNOWN} {row.name}", **_of_row(row))
    if new_head or given.get("num_classes", found.get("num_classes")) != found.get("num_classes"):
        found.forget("class_names", "task", "classifier_activation")
        if not new_head and family == "vit":
            found.forget("representation_size")
    both = ("num_classes", "distillation_token", "distillation_head")
    if not all(given.get(name, found.get(name)) for name in both):
        found.forget("return_both_heads")
    if "image_size" in found.values or "image_size" in found.unknown or "image_size" in given:
        return {}
    size = "that of the variant"
    if family in ("vit", "bit"):
        size = DEFAULT_IMAGE_SIZE
        found.put(f"{DEFAULT} keras_vit", certain=False, image_size=(size, size))
    return {"image_size": f"{size}, not stated in the file"}


def _fit_size(file, found, fields, given, position_interpolation):
    """Checks the image size, and keeps the file's positions in a model of any size, so that they are resized once."""
    any_size, family = (None, None), file.source.family
    file_size, size = found.get("image_size", any_size), fields.get("image_size", any_size)
    file_size = any_size if file_size is None else arguments.image_size(file_size)
    of_any = arguments.image_size(size) == any_size
    changes = {}
    if family == "vit":
        if not {"image_size", "grid_size", "patch_size", "position_embedding"} & set(given):
            check_positions(file, fields)
        if not of_any:
            changes["grid_size"] = None
        elif file_size != any_size:
            changes = {"grid_size": found.positions.grid, "position_interpolation": found.position_interpolation}
        # Set explicitly, since the number of heads may not divide hidden_dim.
        fields["head_dim"] = fields["hidden_dim"] // arguments.positive_int("num_heads", fields["num_heads"])
    elif family == "coatnet":
        if not of_any:
            changes["table_image_size"] = None
        elif file_size != any_size:
            changes["table_image_size"] = file_size
    if position_interpolation is not None and (family == "coatnet" or (of_any and family == "vit")):
        changes["position_interpolation"] = position_interpolation
    fields.update({name: value for name, value in changes.items() if name not in given})


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
