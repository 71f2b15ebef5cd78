"""Reads models from files of weights, .keras files and the folders of training runs."""

import os
import re
from collections.abc import Mapping, Sequence

import keras

from keras_vit import arguments
from keras_vit.files import describe_path
from keras_vit.models import zoo
from keras_vit.models.catalog import FAMILIES, identify, read_config
from keras_vit.models.family import FamilyModel, changed, completed
from keras_vit.models.loading import all_settings, fields_of_file, load_file, open_file
from keras_vit.models.vit.variants import architecture_name
from keras_vit.weights import hub
from keras_vit.weights.found import DEFAULT, KNOWN
from keras_vit.weights.timm_config import state_architecture

# If a file does not determine the preprocessing, the argument `preprocessing` must set these fields.
_CONSTANTS = {"mean", "std", "interpolation", "crop_fraction"}


def from_pretrained(
    path: str | os.PathLike,
    *,
    image_size: int | tuple[int, int] | tuple[None, None] | None = None,
    num_classes: int | None = None,
    architecture: str | None = None,
    source: str | None = None,
    skip: str | Sequence[str] = (),
    grid_size: tuple[int, int] | None = None,
    position_interpolation: str | None = None,
    sha256: str | None = None,
    **kwargs,
) -> keras.Model:
    """Builds a model from a file of this package, Keras, timm, transformers or a paper's own code.

    The sizes follow from the shapes of the weights, and the settings and preprocessing from the file. If the path is a
    .keras file or the folder of a training run, the saved model is returned. If you also pass arguments, such as
    another `image_size`, a new model is built from the saved one. All weights of the new model are trainable. The
    `dtype` and dropout rates are the ones that you pass, not the saved ones.

    Settings that change the outputs are never guessed. Pass the settings that the file and its source do not determine.
    The settings of a timm folder follow from the architecture and `model_args` in its config.json; unsupported settings
    are refused. The logger "keras_vit" reports what was loaded. If the model differs from the file, the report is
    logged as a warning.

    A model without a head outputs the pooled features of the original code: `pooler_output` of transformers,
    `image_embeds` of CLIP with a projection, the normalized class token if there is no pooler (MAE, DeiT), or the mean
    of the patches (I-JEPA).

    Args:
        path: Path, or model name on a hub, as in `load_weights`; or the name of a published checkpoint, such as
            "ViTB16.imagenet21k" (see `list_weights`), which is downloaded once.
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels. None: as in the file. If
            the file does not contain the size, it is 224 or, for an EfficientNet, the usual size of its variant.
        num_classes: Int, 0 for no head. None: as in the file. A different number gives a new head of zeros, and the
            file's pre_logits layer is left out.
        architecture: Name of timm's architecture, such as "vit_small_patch16_224", for a timm state dict without its
            config.json. The model gets the settings that timm uses for this architecture. If most of
            timm's weights for the architecture share a preprocessing, the model has this preprocessing. If not, pass
            `preprocessing`.
        source, skip, grid_size, position_interpolation, sha256: As in `load_weights`. The model's config stores
            `position_interpolation`, which also applies when the model's image size is changed later.
        **kwargs: Other arguments of the builder of the model's family, such as `ViT`. They override the file.
            None stands for the file's value, except for fields that may be None, such as `representation_size`.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, its source is unknown, or a setting is missing. The error names the missing
            settings.
        ImportError: If PyTorch, or the client of a hub, is needed but not installed.
        OSError: If a download fails. Denied access raises PermissionError; a missing network raises ConnectionError.

    Example:

    >>> model = keras_vit.from_pretrained("ViT-B_16.npz", image_size=384)  # doctest: +SKIP
    >>> model = keras_vit.from_pretrained("hf://google/vit-base-patch16-224")  # doctest: +SKIP
    """
    arguments.names("skip", skip)
    row = zoo.ROWS.get(os.fspath(arguments.path("path", path)))
    local = _local_path(path, row)
    given = {**kwargs, "image_size": image_size, "num_classes": num_classes}
    opened = open_file(local, sha256)
    changes = (source, grid_size, position_interpolation, architecture, skip or None, *given.values())
    # `class_names=None` removes the class names, so it is a change.
    if opened.container == "keras" and "class_names" not in kwargs and all(value is None for value in changes):
        # `split` keeps fields that are None, because None is a valid value, for example of `rotary_grid`.
        family = FAMILIES[opened.model.config.family] if isinstance(opened.model, FamilyModel) else None
        if family is None or not any(family.split(kwargs, "from_pretrained")):
            return opened.model
    if architecture is not None:
        state_architecture(opened, architecture, kwargs.get("preprocessing") is None)
    family, file = identify(opened, source or (row and row.source))
    if architecture is not None and not file.source.name.startswith("timm"):
        expected = f"None for {file.path!r}, a file of the source {file.source.name!r}"
        raise arguments.invalid("architecture", expected, architecture)
    found = read_config(file, grid_size, row)
    variant = given.pop("variant", None)
    fields, options = family.split(given, "from_pretrained")
    if "class_names" in kwargs:
        # `class_names=None` removes the class names.
        fields["class_names"] = kwargs["class_names"]
    defaults = _defaults(family, file, found, variant)
    config, usual = _resolve(family, file, found, fields, defaults, skip=skip, interpolation=position_interpolation)
    return _load(family, config, {**usual, **options}, file, found, fields, skip, position_interpolation)


def load_variant(family, variant, weights, given, options, defaults, function=None):
    """Builds a variant and loads weights into it.

    The sizes are from the variant. Every other setting is from the first of these that contains it: `given` (the
    user's arguments), the file, `defaults`.
    """
    architecture = function or (architecture_name(variant) if family.name == "vit" else f"{family.builder}{variant}")
    row = zoo.ROWS.get(f"{architecture}.{weights}") or zoo.ROWS.get(os.fspath(weights))
    there, file = identify(open_file(zoo.local_path(weights, architecture)), row and row.source)
    if there is not family:
        expected = f"weights of a {family.builder} for keras_vit.{function or family.builder}"
        raise ValueError(f"Expected {expected}. Received: {file.path!r}, a model of family {there.name!r}")
    found, usual = read_config(file, None, row), family.config.from_variant(variant)
    found.forget("variant")
    settings = {} if "image_size" in found.unknown else {"image_size": usual.image_size}
    if file.source.name == "keras":
        # The .weights.h5 files of Keras contain no settings. Such a file fits only if a model of this variant wrote it,
        # so use the variant's settings.
        settings = vars(usual)
    sizes = {name: getattr(usual, name) for name in family.config.variant_sizes(variant)}
    config, _ = _resolve(family, file, found, given, {**settings, **defaults}, sizes=sizes)
    method = given.get("position_interpolation")
    return _load(family, config, options, file, found, given, position_interpolation=method)


def _defaults(family, file, found, variant):
    """Returns the config fields of a variant, or {} if `variant` is None.

    Raises ValueError if the arrays of the file already determine these fields.
    """
    if variant is None:
        return {}
    if "variant" not in found.unknown:
        raise ValueError(
            f"Expected no `variant` for {file.path!r}, whose arrays determine the sizes. Received: {variant!r}. For a "
            f"model of this variant, call keras_vit.{family.builder}({variant!r}, weights=...)."
        )
    found.forget("variant")
    usual = family.config.from_variant(variant)
    found.put(f"{KNOWN} {variant}", name=family.config.variant_model_name(variant))
    return {name: getattr(usual, name) for name in (*family.config.variant_sizes(variant), "image_size")}


def _resolve(family, file, found, given, defaults, *, sizes=(), skip=(), interpolation=None):
    """Decides the config of a model that is built from a file; returns (config, default options of `Family.make`).

    A field comes from the first of these that has a value: `given` (by the user), `sizes` (of the variant), `found`
    (in the file), `defaults`. If the model gets a new head, the fields in `found` that describe the file's head are
    ignored. `skip` and `interpolation` are the user's arguments `skip` and `position_interpolation`.
    """
    new_head = "head" in ((skip,) if isinstance(skip, str) else skip)
    if new_head or given.get("num_classes", found.get("num_classes")) != found.get("num_classes"):
        found.forget("class_names", "task", "classifier_activation")
        if not new_head and family.name == "vit":
            found.forget("representation_size")
    if not all(given.get(n, found.get(n)) for n in ("num_classes", "distillation_token", "distillation_head")):
        found.forget("return_both_heads")
    known = fields_of_file(file, found)
    variant = family.config.variant_from_fields(known)
    usual = {"name": found.get("name") or (family.config.variant_model_name(variant) if variant else family.name)}
    usual |= family.config.training_options_for(variant) if variant else {}
    found.forget("name")
    size = family.config.usual_image_size(known)
    for name, value in {"image_size": (size, size), **defaults}.items():
        if name not in found.values and (name not in found.unknown or name in defaults):
            found.put(f"{DEFAULT} keras_vit", certain=False, **{name: value})
    chosen = {**dict(sizes), **given}
    if interpolation is not None and hasattr(family.config, "position_interpolation"):
        chosen["position_interpolation"] = interpolation
    part = given.get("preprocessing")
    if isinstance(part, Mapping) and "preprocessing" in found.unknown and not part.keys() >= _CONSTANTS:
        # The user gave only a part of the preprocessing. Leave the preprocessing unknown, so `resolve` raises an error.
        del chosen["preprocessing"]
    fields = found.resolve(chosen)
    fields.update(_tables(family, found, fields, chosen))
    fields.update({name: value for name, value in family.fit(file, found, fields, given).items() if name not in given})
    base = found.get("preprocessing") or family.config.usual_preprocessing(fields["image_size"])
    preprocessing, class_names = changed(base, fields.pop("preprocessing", base)), fields.pop("class_names", None)
    return completed(arguments.record(family.config, fields), preprocessing, class_names), usual


def _tables(family, found, fields, given):
    """Returns the config fields that set the size and the resizing of the position table, as a dict.

    If the model takes images of any size, its table is as large as the table in the file.
    """
    any_size, table = (None, None), family.config.table_field
    if table is None or table in given:
        return {}
    if arguments.image_size(fields["image_size"]) != any_size:
        return {table: None}
    size = found.get("image_size") or any_size
    if arguments.image_size(size) == any_size:
        return {}
    method = given.get("position_interpolation", found.position_interpolation)
    return {table: found.positions.grid if family.name == "vit" else size, "position_interpolation": method}


def _load(family, config, options, file, found, given, skip=(), position_interpolation=None):
    """Builds a model from a config, loads a file into it, and logs the report."""
    model = family.make(config, **options)
    allow = set(given) & set(all_settings())
    report = load_file(model, file, found, skip=skip, allow=allow, position_interpolation=position_interpolation)
    size = found.values.get("image_size")
    if "image_size" not in given and size is not None and size.origin == f"{DEFAULT} keras_vit":
        report.assumed["image_size"] = f"{size.value[0]}, not stated in the file"
    report.log()
    return model


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
            f'the name of a published checkpoint in `list_weights`, such as "ViTB16.imagenet21k". Received: '
            f"{describe_path(path)}{meant}"
        )
    return path
