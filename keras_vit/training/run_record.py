"""Records what decides the course of a run, so that it is not resumed with something else."""

import hashlib
import inspect
import os
import re
import reprlib

import keras
import numpy as np

from keras_vit.prediction.inputs import num_batches, to_numpy

PARTS = ("seed", "model", "optimizer", "learning_rate", "loss", "data")
# Modules differ between backends and versions; the state of random generators is in the checkpoint.
_NOT_COMPARED = ("module", "registered_name", "build_config", "compile_config", "seed")


def record_of(model, data):
    """Returns the configs of a compiled model, its optimizer and its loss, and `data`, as a dict of JSON values."""
    rate = plain_rate(model.optimizer)
    kept = {id(variable) for variable in model.variables}
    # Such as those of a distiller's teacher.
    unsaved = [keras.ops.convert_to_numpy(v) for v in model.non_trainable_variables if id(v) not in kept]
    return {
        "model": {**_clean(_config(model)), "unsaved": [_digest(np.atleast_1d(value)) for value in unsaved]},
        "optimizer": _clean(_config(model.optimizer)),
        "learning_rate": None if rate is None else float(rate),
        "loss": _clean(_config(getattr(model, "loss", None))),
        "data": _clean(data),
    }


def plain_rate(optimizer):
    """Returns the variable of a learning rate that is not a schedule, else None."""
    rate = getattr(optimizer, "learning_rate", None)
    return rate if isinstance(rate, keras.Variable) else None


def data_of(x, y=None, sample_weight=None, batch_size=None, steps=None):
    """Describes data for `model.fit` by what can be known without reading it."""
    arrays = keras.tree.flatten((x, y, sample_weight))
    if all(hasattr(array, "shape") or array is None for array in arrays):
        return {"batch_size": batch_size or 32, "arrays": [_digest(array) for array in arrays if array is not None]}
    # A job may find the same files in another folder.
    files = [os.path.basename(path) for path in getattr(x, "file_paths", None) or ()]
    return {
        "kind": type(x).__name__,
        "spec": str(_whole_batch(x)),
        "batch_size": batch_size or getattr(x, "batch_size", None),
        "steps": steps,
        "num_images": getattr(x, "num_images", None),
        "class_names": _sha256(repr(getattr(x, "class_names", None)).encode()),
        "files": _sha256(repr(files).encode()),
    }


def _whole_batch(x):
    """Returns the specification of a dataset's batches; of one that processes share, as a single process has it."""
    spec, num_shards = getattr(x, "element_spec", None), getattr(x, "num_shards", 1)
    if num_shards == 1:
        return spec
    # A run of several processes can be resumed by one.
    return keras.tree.map_structure(
        lambda part: type(part)((part.shape[0] * num_shards, *part.shape[1:]), part.dtype), spec
    )


def goes_on(x=None, batch_size=None, steps_per_epoch=None, **others):
    """Returns whether each epoch of `model.fit` with these arguments goes on in the data where the last one ended."""
    if steps_per_epoch is None:
        return False
    first = keras.tree.flatten(x)[0]
    return steps_per_epoch != (-(-len(first) // (batch_size or 32)) if hasattr(first, "shape") else num_batches(x))


def arguments_of_fit():
    """Returns the arguments of the running `model.fit`, since Keras does not tell callbacks."""
    frame = inspect.currentframe()
    while frame is not None and not (frame.f_code.co_name == "fit" and "steps_per_epoch" in frame.f_locals):
        frame = frame.f_back
    return {} if frame is None else dict(frame.f_locals)


def difference(saved, here, place=""):
    """Describes the first difference of two records, in what both have; None if there is none."""
    if isinstance(saved, dict) and isinstance(here, dict):
        pairs = [(key, saved[key], here[key]) for key in saved if key in here]
    elif isinstance(saved, list) and isinstance(here, list):
        pairs = [(_name(b, i), a, b) for i, (a, b) in enumerate(zip(saved, here, strict=False))]
        pairs.append(("length", len(saved), len(here)))
    elif repr(saved) == repr(here):
        return None
    else:
        return f"{place.lstrip('.')} {reprlib.repr(saved)} and not {reprlib.repr(here)}"
    found = (difference(a, b, f"{place}.{name}") for name, a, b in pairs)
    return next((text for text in found if text), None)


def _name(value, default):
    """Returns the name in a config of a layer, else `default`."""
    config = value.get("config", value) if isinstance(value, dict) else None
    return config.get("name", default) if isinstance(config, dict) else default


def _config(thing):
    """Returns the config of a model, layer, optimizer or loss; for one without, what can be read from it."""
    kind = type(thing).__name__
    try:
        if hasattr(thing, "get_config"):
            return {"class": kind, **thing.get_config()}
        return keras.saving.serialize_keras_object(thing)
    # A user's own class may have no config, or one that fails.
    except Exception:
        plain = {"loss", "stop_training", *vars(keras.Model(name="plain"))}
        own = {name: value for name, value in vars(thing).items() if name[0] != "_" and name not in plain}
        settings = {name: value for name, value in own.items() if isinstance(value, (bool, int, float, str, tuple))}
        layers = [_config(layer) for layer in getattr(thing, "layers", ())]
        return {"class": kind, "name": getattr(thing, "name", None), **settings, "layers": layers}


def _clean(value):
    """Converts a config to JSON types, without what does not change a run."""
    if isinstance(value, dict):
        if value.get("class_name") == "__lambda__":
            return "lambda"
        # A plain learning rate, which callbacks change, is recorded apart.
        rate = isinstance(value.get("learning_rate"), float)
        skipped = ("learning_rate", *_NOT_COMPARED) if rate else _NOT_COMPARED
        return {str(key): _clean(item) for key, item in value.items() if key not in skipped}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    if isinstance(value, str):
        # Without the numbers that Keras appends to the names of layers.
        return re.sub(r"_[0-9]+(?=[_/]|$)", "", value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return value if value is None or isinstance(value, (bool, int, float)) else type(value).__name__


def _digest(array):
    """Describes an array by shape, and a digest of about 64 of its rows if it is dense."""
    described = {"shape": [int(size or 0) for size in array.shape]}
    try:
        rows = to_numpy(array[:: max(1, array.shape[0] // 64)])
    except (TypeError, ValueError, NotImplementedError):
        return described
    values = repr(rows.tolist()).encode() if rows.dtype == object else rows.tobytes()
    return {**described, "dtype": str(rows.dtype), "values": _sha256(values)}


def _sha256(data):
    return hashlib.sha256(data).hexdigest()[:16]
