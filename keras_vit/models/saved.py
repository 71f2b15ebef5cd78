"""Reads models that Keras saved: .keras files and the folders of training runs, also at another image size."""

import json
import os
import re
import zipfile

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.config import config_of, find_normalization
from keras_vit.models.catalog import FAMILIES
from keras_vit.models.family import FamilyModel, changed
from keras_vit.weights import resize
from keras_vit.weights.tokens import weights_by_path

# The files that a run writes to its folder at its end and at its start.
MODEL, STARTED = "model.keras", "recipe.json"
# Keras checks few values of a config, so a damaged config raises many kinds of errors.
_DAMAGE = (zipfile.BadZipFile, ArithmeticError, AttributeError, LookupError, RecursionError, ValueError)
_POSITIONS, _PATCHES, _TABLE = "position_embedding/embeddings", "patch_embedding/kernel", "/attention/position_table"


def saved_file(path):
    """Returns the .keras file of a path, which may be the folder of a training run; None for another path."""
    if os.path.isfile(os.path.join(path, MODEL)):
        return os.path.join(path, MODEL)
    if os.path.isfile(os.path.join(path, STARTED)):
        raise FileNotFoundError(
            f"Expected a run that has ended. There is no {MODEL} in {path!r} yet: train again to continue."
        )
    return path if path.endswith(".keras") else None


def read_saved(path, given):
    """Reads a .keras file without compiling it; `given` are builder arguments that change the model."""
    model = _load(path)
    # None removes the class names, as for other files.
    given = {name: value for name, value in given.items() if value is not None or name == "class_names"}
    if not given:
        return model
    if not isinstance(model, FamilyModel):
        raise ValueError(
            f"Expected {path!r} to contain a model of a builder of this package, to change {', '.join(given)}. "
            f"Received: a {type(model).__name__} around it. Load it without these arguments, take the inner model by "
            "get_layer, save that, and read it with them."
        )
    return _rebuilt(model, given)


def _load(path):
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
        # Keras raises TypeError for an unknown layer.
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


def _rebuilt(model, given):
    """Returns a model with other arguments and the weights of `model`; positions and patches are resized."""
    old = config_of(model)
    _check_whole(model, old, given)
    family = FAMILIES[old.family]
    fields, options = family.split(given, "from_pretrained")
    if "class_names" in given:
        fields["class_names"] = given["class_names"]
    if "preprocessing" in fields:
        fields["preprocessing"] = changed(old.preprocessing, fields["preprocessing"])
    num_classes = fields.get("num_classes", old.num_classes)
    arguments.class_names(fields.get("class_names"), num_classes)
    replaced = ()
    if num_classes != old.num_classes:
        replaced = _HEADS
        fields = {"class_names": None, "task": "single_label", "classifier_activation": None, **fields}
        if old.family == "vit" and not fields.get("representation_size"):
            replaced = (*_HEADS, "pre_logits")
            fields["representation_size"] = None
    if not num_classes and getattr(old, "return_both_heads", False):
        fields = {"return_both_heads": False, **fields}
    new_config = old.replace(**{**_tables(old, fields), **fields})
    new = family.make(new_config, **{"name": model.name, **options})
    values, here = {}, weights_by_path(new)
    there = {
        weight: variable for weight, variable in weights_by_path(model).items() if weight.split("/")[0] not in replaced
    }
    for weight, variable in here.items():
        shape = tuple(variable.shape)
        if weight.split("/")[0] in replaced:
            values[weight] = np.zeros(shape, "float32")
        elif weight in there:
            value = ops.convert_to_numpy(ops.cast(there[weight], "float32"))
            values[weight] = value if value.shape == shape else _resized(weight, value, old, new)
    wrong = [weight for weight in {**here, **there} if weight not in values or weight not in here]
    wrong += [weight for weight, value in values.items() if value is None or value.shape != tuple(here[weight].shape)]
    if any(getattr(old, name, None) != getattr(new.config, name, None) for name in ("num_heads", "head_dim")):
        # The attention's weights may have the same shapes in both models.
        wrong += [weight for weight in here if "attention/" in weight]
    if wrong:
        received = ", ".join(name for name in fields if name in given)
        advice = "Build a new model and train it."
        if any("/lora_" in weight for weight in wrong):
            advice = "Read the file without these arguments, apply keras_vit.training.merge_lora, and save the result."
        raise ValueError(
            f"Expected changes that the weights of model {model.name!r} fit. Received: {received}, which need other "
            f"weights: {', '.join(wrong[:10])}. {advice}"
        )
    for weight, value in values.items():
        here[weight].assign(value)
    return new


def _check_whole(model, config, given):
    """Raises if a model was cut before its head, or if its weights include the scaling of the images."""
    changes = ", ".join(given)
    if find_normalization(model).folded:
        raise ValueError(
            f"Expected a model whose preprocessing is not folded into its weights, to change {changes}. Received: "
            f"model {model.name!r}. Change the model that fold_preprocessing was called on, and fold it again."
        )
    if (model.head is None) != (config.num_classes == 0):
        raise ValueError(
            f"Expected a model with the head of its config, to change {changes}. Received: model {model.name!r}, which "
            "was cut before its head. Change the whole model, and cut it again."
        )


def _tables(old, fields):
    """Returns the fields that keep the size of the position tables if `fields` allow images of any size."""
    if arguments.image_size(fields.get("image_size", 1)) != (None, None):
        return {}
    return {} if old.table_field is None else {old.table_field: old.table_size}


# Layers that are set to zero if the number of classes changes.
_HEADS = ("head", "head_dist")


def _resized(weight, value, old, new):
    """Returns a position table or a patch kernel in the size of the model `new`; None for another weight."""
    config = new.config
    if weight == _PATCHES:
        return resize.resize_patches(value, config.patch_size)
    if weight == _POSITIONS:
        count = new.get_layer("position_embedding").num_prefix_positions
        patches = value[0, count:].reshape(*old.grid, -1)
        patches = resize.resize_positions(patches, *config.grid, config.position_interpolation)
        return np.concatenate([value[:, :count], patches.reshape(1, -1, value.shape[-1])], axis=1)
    if weight.endswith(_TABLE):
        stage = int(weight.split("_")[1])
        before, after = ([2 * side - 1 for side in each.grid(stage)] for each in (old, config))
        table = resize.resize_positions(value.reshape(*before, -1), *after, config.position_interpolation)
        return table.reshape(-1, value.shape[-1])
    return None
