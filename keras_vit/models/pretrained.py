"""Reads models from checkpoints, .keras files and training runs."""

import inspect
import json
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import keras

from keras_vit import arguments
from keras_vit.config import DEFAULT_IMAGE_SIZE, Preprocessing
from keras_vit.files import absent
from keras_vit.models import zoo
from keras_vit.models.bit.model import BiT
from keras_vit.models.catalog import CHECKPOINTS, identify, read_config
from keras_vit.models.checkpoint import open_file
from keras_vit.models.coatnet.model import CoAtNet
from keras_vit.models.efficientnet.model import EfficientNet
from keras_vit.models.loading import load_file
from keras_vit.models.model_settings import name_of, sizes_of_file
from keras_vit.models.vit.builder import ViT
from keras_vit.models.vit.checkpoint import check_positions
from keras_vit.weights import hub
from keras_vit.weights.found import DEFAULT, KNOWN
from keras_vit.weights.labels import with_task_fields

# The arguments for which None is a value, not a default.
_NONE = (
    *("pooling", "classifier_activation", "representation_size", "class_names"),
    *("rotary_embedding", "rotary_grid"),
)
# The arguments that together set the preprocessing.
_CONSTANTS = ("mean", "std", "interpolation", "crop_fraction")
# By the family of a checkpoint.
BUILDERS = {"vit": ViT, "bit": BiT, "coatnet": CoAtNet, "efficientnet": EfficientNet}
# Variants whose sizes are overridden, where none has the file's; that of CoAtNet has none of the optional layers.
_VARIANTS = {"vit": "B/16", "bit": "R50x1", "coatnet": "coatnet_nano_rw", "efficientnet": "B0"}
# Files of a run's folder, written at its end and at its start.
MODEL, STARTED = "model.keras", "recipe.json"
# Keras checks few values of a config, so a damaged one fails in many ways.
_DAMAGE = (zipfile.BadZipFile, ArithmeticError, AttributeError, LookupError, RecursionError, ValueError)


def from_pretrained(
    path: str | os.PathLike,
    *,
    image_size: int | tuple[int, int] | tuple[None, None] | None = None,
    num_classes: int | None = None,
    num_heads: int | None = None,
    source: str | None = None,
    skip: str | Sequence[str] = (),
    grid_size: tuple[int, int] | None = None,
    position_interpolation: str | None = None,
    sha256: str | None = None,
    **kwargs,
) -> keras.Model:
    """Builds a model from a checkpoint: sizes from the weights' shapes, settings and preprocessing from the file.

    Settings that change the outputs are never guessed: pass those that neither the file nor its source determines. For
    a timm folder, they follow from its architecture's name and its `model_args`; unsupported ones are refused. The
    logger "keras_vit" reports what was loaded, as a warning if the model differs from the file.

    Without a head, the output is the one that its code pools: transformers' `pooler_output`, `image_embeds` of CLIP
    with a projection, the normed class token where there is no pooler (MAE, DeiT), the mean of the patches of I-JEPA.

    Args:
        path: Path or hub's name as in `load_weights`, or the name of a published checkpoint, such as
            "ViTB16.imagenet21k" (see `list_weights`), which is downloaded once.
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels. None: as in the file, or
            224 if it does not say.
        num_classes: Int, 0 for no head. None: as in the file. A different number gives a new head of zeros, without the
            file's pre_logits.
        num_heads: Int, the heads per block. None: as in the file, or in published models of the same sizes.
        source, skip, grid_size, position_interpolation, sha256: As in `load_weights`. Models of any size also use
            `position_interpolation` at run time.
        **kwargs: Other arguments of the family's builder, such as `ViT`, which override the file.

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
    family, file = identify(open_file(_local_path(path, row), sha256), source)
    found = read_config(file, grid_size)
    given = {"image_size": image_size, "num_classes": num_classes, "num_heads": num_heads, **kwargs}
    given = _given(BUILDERS[family], given, kwargs)
    assumed = _complete(found, family, row, given, skip)
    fields = with_task_fields(found.resolve(given))
    _fit_size(file, found, fields, given, position_interpolation)
    # The variant of these sizes, or one whose sizes are overridden; other families state theirs.
    known = name_of(sizes_of_file(file, found))
    variant = re.sub("ViT-|BiT-|EfficientNet-", "", known or _VARIANTS[family])
    name = None if known or family == "bit" else family
    model = BUILDERS[family](**{"variant": variant, "name": name, **fields})
    allow = [name for name in CHECKPOINTS[family].SETTINGS if name in given]
    report = load_file(model, file, found, skip=skip, allow=allow, position_interpolation=position_interpolation)
    report.assumed.update(assumed)
    report.log()
    return model


def _given(build, given, kwargs):
    """Returns the arguments that override the file; raises if the builder has no such argument."""
    known = {*inspect.signature(build).parameters, "task"}
    for name in set(kwargs) - known:
        expected = f"an argument of keras_vit.{build.__name__}: {', '.join(sorted(known))}"
        raise ValueError(f"Expected {expected}. Received: {name}={kwargs[name]!r}{arguments.nearest(name, known)}")
    return {name: value for name, value in given.items() if value is not None or (name in kwargs and name in _NONE)}


def _complete(found, family, row, given, skip):
    """Adds what is known beside the file, and removes what does not apply; returns {field: value that is assumed}."""
    new_head = "head" in ((skip,) if isinstance(skip, str) else skip)
    if row is not None:
        found.put(f"{KNOWN} {row.name}", **_of_row(row))
    if all(name in given for name in _CONSTANTS) and "preprocessing" in found.unknown:
        found.put("as given", preprocessing=Preprocessing(**{name: given[name] for name in _CONSTANTS}))
    if {"multi_label", "regression"} & given.keys():
        found.forget("task")
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


def read_model(path: str | os.PathLike, **options) -> keras.Model:
    """Reads a model, not compiled, from a .keras file, a run's folder, or (with `options`) a checkpoint."""
    path = hub.local_path(os.fspath(path))
    options = {name: value for name, value in options.items() if value is not None}
    if os.path.isfile(os.path.join(path, MODEL)):
        path = os.path.join(path, MODEL)
    elif os.path.isfile(os.path.join(path, STARTED)):
        raise FileNotFoundError(
            f"Expected a run that has ended. There is no {MODEL} in {path!r} yet: train again to continue."
        )
    if not path.endswith(".keras"):
        return from_pretrained(path, **options)
    if options:
        raise ValueError(
            f"Expected no {', '.join(options)} with {path!r}, which contains it. For another, load it in Python, write "
            "a checkpoint with keras_vit.save_weights, and read that."
        )
    if not Path(path).is_file():
        raise FileNotFoundError(f"Expected a .keras file. Received: {absent(path)}")
    damaged = f"Cannot read {path!r}: it is not a .keras file, or it is damaged"
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{damaged}.")
    try:
        return keras.saving.load_model(path, compile=False)
    except TypeError as error:
        if (version := _keras_version(path)) is not None and _numbers(version) > _numbers(keras.__version__):
            raise ValueError(
                f"Cannot read {path!r}. Keras {version} saved it, and Keras {keras.__version__} is installed. Install "
                f"that version or a newer one: pip install 'keras>={version}'. {error}"
            ) from error
        # Keras raises TypeError for a layer that it does not know.
        raise ValueError(
            f"Cannot read {path!r}. Models with your own layers have to be loaded in Python, where these are defined. "
            f"{error}"
        ) from error
    except _DAMAGE as error:
        raise ValueError(f"{damaged} ({type(error).__name__}: {error}).") from error


def _keras_version(path):
    """Returns the version of Keras that saved a .keras file, or None."""
    try:
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read("metadata.json")).get("keras_version")
    except _DAMAGE:
        return None


def _numbers(version):
    return [int(number) for number in re.findall(r"\d+", str(version))[:3]]


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
