"""Helpers of the tests of weights: outputs of models, and folders of timm."""

import json
import shutil
import zipfile

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.models.catalog import identify, read_config
from keras_vit.models.loading import current_fields, head_sizes, open_file
from keras_vit.weights.tokens import weights_by_path
from tests.errors import refuses
from tests.golden import GOLDEN_FOLDER


def images(model, batch=2):
    """Returns random images of the size that a model takes."""
    shape = (batch, *(side or 16 for side in model.input_shape[1:]))
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def outputs(model, x=None):
    """Returns the output of a model, by default for random images."""
    return keras.ops.convert_to_numpy(model(images(model) if x is None else x))


def check_refused(message, path, into=None, error=ValueError, **options):
    """Checks that `from_pretrained`, or `load_weights` into a model, raises an error with this message."""
    with pytest.raises(error, match=message):
        if into is None:
            keras_vit.from_pretrained(path, **options)
        else:
            keras_vit.load_weights(into, path, **options)


def check_not_saved(message, model, path, *format, error=ValueError, **options):
    """Checks that `save_weights` raises an error with this message."""
    refuses(message, keras_vit.save_weights, model, path, *format, error=error, **options)


def check_same(model, other):
    """Checks that two models compute the same."""
    np.testing.assert_array_equal(outputs(model), outputs(other, images(model)))


def unchanged(model, before):
    """Returns whether the weights of a model are those of a list."""
    return all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def shapes_of(model, source):
    """Returns {key: shape} of the file of a source with the weights of a model."""
    heads, found = head_sizes(current_fields(model)), {}
    for weight, variable in weights_by_path(model).items():
        row = source.find(weight)
        found |= zip(row.keys, row.codec.file_shapes(tuple(variable.shape), heads), strict=True)
    return found


def state_of(model, source, heads=None, **more):
    """Returns {key: array} of the file of a source with the weights of a model."""
    found = {}
    for weight, variable in weights_by_path(model).items():
        row = source.find(weight)
        found |= zip(row.keys, row.codec.to_file(keras.ops.convert_to_numpy(variable), heads), strict=True)
    return {key: np.ascontiguousarray(array) for key, array in {**found, **more}.items()}


def read(path, source=None):
    """Opens a checkpoint; returns its file and what is found of its config."""
    _, file = identify(open_file(path), source)
    return file, read_config(file, None)


def changed(tmp_path, name, file="config.json", **changes):
    """Copies a golden folder and changes one of its JSON files; a value of ... removes the key."""
    copy = shutil.copytree(GOLDEN_FOLDER / name, tmp_path / "copy", dirs_exist_ok=True)
    path = copy / file
    content = {**(json.loads(path.read_text()) if path.exists() else {}), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    return copy


def without_facts(path):
    """Rewrites a file as another library writes it, without the metadata of this package. Returns the path."""
    save_file(load_file(path), path)
    return path


def rewrite_member(path, name, change):
    """Replaces one member of a ZIP archive by `change(bytes)`, which must return other bytes."""
    with zipfile.ZipFile(path) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    content = change(members[name])
    assert content != members[name]
    with zipfile.ZipFile(path, "w") as archive:
        for each, data in {**members, name: content}.items():
            archive.writestr(each, data)
    return path


def timm_folder(path, arrays, **config):
    """Writes golden arrays as a folder of timm with a config, and returns the path of the folder."""
    path.mkdir(exist_ok=True)
    shutil.copy(GOLDEN_FOLDER / f"{arrays}.safetensors", path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path
