"""Records the model, optimizer, loss and data of a run, and compares them when the run is resumed."""

import hashlib
import os
import re
import reprlib

import keras
import numpy as np

from keras_vit.prediction.inputs import functional_graph, to_numpy
from keras_vit.training.epochs import is_arrays

PARTS = ("seed", "model", "optimizer", "learning_rate", "data", "loss", "callbacks")
# Compare all rows of an array of at most _WHOLE_BYTES, and a sample of at least _ROWS rows of a larger array.
_WHOLE_BYTES, _ROWS = 2**26, 4096
# Configs are compared without these keys. Module names differ between backends and versions. Seeds may differ, because
# checkpoints contain the states of random generators.
_NOT_COMPARED = ("module", "registered_name", "build_config", "compile_config", "seed")


def describe_run(model, batch=None):
    """Returns a dict of JSON values: the configs of model, optimizer and loss, and the rate unless it is a schedule."""
    rate, kept = _rate(model.optimizer), {id(variable) for variable in model.variables}
    # Checkpoints contain only `model.variables`. Record hashes of all other weights, such as the weights of the teacher
    # in a `Distiller`.
    unsaved = [keras.ops.convert_to_numpy(v) for v in model.non_trainable_variables if id(v) not in kept]
    record = {
        "model": {**_clean(_config(model)), "unsaved": [_digest(np.atleast_1d(value)) for value in unsaved]},
        "optimizer": _clean(_config(model.optimizer)),
        "learning_rate": rate,
        "loss": {"config": _clean(_config(getattr(model, "loss", None))), **_loss_value(model, batch)},
    }
    # A model with parts that are not in its config, such as `MetaPseudoLabels`, returns them by its `run_record`.
    for part, values in getattr(model, "run_record", dict)().items():
        for name, value in values.items():
            record[part][name] = _clean(_config(value))
            if isinstance(value, keras.optimizers.Optimizer):
                # Callbacks do not change the learning rate of a second optimizer, so record the rate here.
                record[part][name]["rate"] = _rate(value)
    return record


def _loss_value(model, batch):
    """Returns {"value": loss of random outputs}, which differs between losses of one name. Returns {} if this fails."""
    graph, loss = functional_graph(model), getattr(model, "loss", None)
    if batch is None or len(batch) < 2 or graph is None or not callable(loss) or len(graph.outputs) != 1:
        return {}
    try:
        shape = (len(batch[1]), *graph.outputs[0].shape[1:])
        outputs = np.random.default_rng(0).normal(size=shape).astype("float32")
        # Use `call`, because under tf.distribute `__call__` divides the loss by the number of devices.
        function = loss.call if isinstance(loss, keras.losses.Loss) else loss
        values = function(*map(keras.ops.convert_to_tensor, (batch[1], outputs)))
        return {"value": f"{float(keras.ops.mean(values)):.4g}"}
    # The loss may need outputs of another structure, for example of two heads.
    except Exception:
        return {}


def plain_rate(optimizer):
    """Returns the variable of an optimizer's learning rate, or None if the learning rate is a schedule."""
    rate = getattr(optimizer, "learning_rate", None)
    return rate if isinstance(rate, keras.Variable) else None


def _rate(optimizer):
    rate = plain_rate(optimizer)
    return None if rate is None else float(rate)


def describe_data(data, batch, steps, **options):
    """Returns a dict that describes the data of `fit`, its first batch, and options such as class weights."""
    options["steps"] = steps
    if is_arrays(data):
        arrays = keras.tree.flatten(data)
        return {**options, "arrays": [_digest(array) for array in arrays if array is not None]}
    # Compare only the names of files, because the files may be in another folder when the run is started again.
    files = [os.path.basename(path) for path in getattr(data, "file_paths", None) or ()]
    spec, num_shards = getattr(data, "element_spec", None), getattr(data, "num_shards", 1)
    # Describe the batches of all processes together, because a run may be resumed with another number of processes.
    if num_shards > 1:
        spec = keras.tree.map_structure(lambda x: type(x)((x.shape[0] * num_shards, *x.shape[1:]), x.dtype), spec)
    names = getattr(data, "class_names", None)
    described = {**options, "kind": type(data).__name__, "spec": str(spec)}
    described |= {"num_images": getattr(data, "num_images", None), "class_names": _sha256(repr(names).encode())}
    described["files"] = _sha256(repr(files).encode())
    if num_shards == 1:
        described["first_batch"] = [_digest(array) for array in keras.tree.flatten(batch) if array is not None]
    return described


def difference(saved, here, place=""):
    """Returns a text about the first difference in the keys that both values have, or None. `place` is their path."""
    if isinstance(saved, dict) and isinstance(here, dict):
        pairs = [(key, saved[key], here[key]) for key in saved if key in here]
    elif isinstance(saved, list) and isinstance(here, list):
        # In a list of layers, `place` contains the name of the layer instead of its index.
        configs = [value.get("config", value) if isinstance(value, dict) else {} for value in here]
        names = [config.get("name", i) if isinstance(config, dict) else i for i, config in enumerate(configs)]
        pairs = [*zip(names, saved, here, strict=False), ("length", len(saved), len(here))]
    elif repr(saved) == repr(here):
        return None
    else:
        return f"{place.lstrip('.')} {reprlib.repr(saved)} and not {reprlib.repr(here)}"
    found = (difference(a, b, f"{place}.{name}") for name, a, b in pairs)
    return next((text for text in found if text), None)


def _config(thing):
    """Returns the config of a model, layer, optimizer or loss. If it has no config, returns its public settings."""
    kind = type(thing).__name__
    try:
        if hasattr(thing, "get_config"):
            return {"class": kind, **thing.get_config()}
        return keras.saving.serialize_keras_object(thing)
    # A class that the user wrote may have no `get_config`, or its `get_config` may fail.
    except Exception:
        plain = {"loss", "stop_training", *vars(keras.Model(name="plain"))}
        own = {name: value for name, value in vars(thing).items() if name[0] != "_" and name not in plain}
        settings = {name: value for name, value in own.items() if isinstance(value, (bool, int, float, str, tuple))}
        layers = [_config(layer) for layer in getattr(thing, "layers", ())]
        return {"class": kind, "name": getattr(thing, "name", None), **settings, "layers": layers}


def _clean(value):
    """Converts a config to JSON types and removes entries that do not affect training."""
    if isinstance(value, dict):
        if value.get("class_name") == "__lambda__":
            return "lambda"
        # A plain learning rate is recorded separately, because callbacks change it.
        rate = isinstance(value.get("learning_rate"), float)
        skipped = ("learning_rate", *_NOT_COMPARED) if rate else _NOT_COMPARED
        return {str(key): _clean(item) for key, item in value.items() if key not in skipped}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    if isinstance(value, str):
        # Remove the numbers that Keras appends to the names of layers.
        return re.sub(r"_[0-9]+(?=[_/]|$)", "", value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return value if value is None or isinstance(value, (bool, int, float)) else type(value).__name__


def _digest(array):
    """Returns the shape, the dtype and a hash of all or some rows of an array, or only the shape if it is sparse."""
    described = {"shape": [int(size or 0) for size in array.shape]}
    try:
        whole = getattr(array, "nbytes", 0) <= _WHOLE_BYTES
        rows = to_numpy(array if whole else array[:: max(1, array.shape[0] // _ROWS)])
    except (TypeError, ValueError, NotImplementedError):
        return described
    values = repr(rows.tolist()).encode() if rows.dtype == object else rows.tobytes()
    return {**described, "dtype": str(rows.dtype), "values": _sha256(values)}


def _sha256(data):
    return hashlib.sha256(data).hexdigest()[:16]
