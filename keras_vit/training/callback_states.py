"""Gives callbacks unique names, and returns and restores their states for checkpoints."""

import os

import keras
import numpy as np
from keras import ops

from keras_vit.training.checkpoints import storable

# {class name of a Keras callback: the public attributes that contain its state}. Keras has no function that returns
# this state. If a Keras version adds an attribute to a callback, tests/training/test_callback_states.py fails.
_ATTRIBUTES = {
    "EarlyStopping": ("wait", "best", "best_epoch", "stopped_epoch", "best_weights"),
    "History": ("epoch", "history"),
    "ModelCheckpoint": ("best",),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "SwapEMAWeights": (),
}
# Checkpoints do not contain these attributes, because Keras sets them again in each process.
_NO_STATE = ("params", "monitor_op", "min_delta", "csv_file", "writer", "keys", "append_header")


def named(callbacks):
    """Returns {unique name: callback}; raises an error if the state of a callback cannot be saved."""
    found = {}
    for callback in keras.tree.flatten(list(callbacks)):
        if not isinstance(callback, keras.callbacks.Callback):
            raise ValueError(f"Expected `callbacks` to be Keras callbacks. Received: {callback!r}")
        shown = (getattr(callback, key, None) for key in ("monitor", "filepath", "filename"))
        shown = ", ".join(repr(os.path.basename(os.fspath(x))) for x in shown if isinstance(x, (str, os.PathLike)))
        name = kind = type(callback).__name__ + (f"({shown})" if shown else "")
        reason, counting = None, "update_freq" if isinstance(callback, keras.callbacks.TensorBoard) else "save_freq"
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            reason = "keras_vit.training.fit already saves and loads the run."
        elif isinstance(getattr(callback, counting, None), int):
            reason = f"The callback counts batches in private attributes. Use {counting}='epoch'."
        if reason and not _has_own_state(callback):
            raise ValueError(f"Expected callbacks whose states can be saved. Received: {name}. {reason}")
        while name in found:
            name = f"{kind} {int(name.removeprefix(kind) or 1) + 1}"
        found[name] = callback
    swapped = any(isinstance(callback, keras.callbacks.SwapEMAWeights) for callback in found.values())
    for name, callback in found.items():
        swapped = swapped and not swaps_on_epoch(callback)
        if swapped and getattr(callback, "restore_best_weights", False):
            expected = f"Expected SwapEMAWeights(swap_on_epoch=True) before {name}, because validation uses averages"
            raise ValueError(f"{expected}. Received: {', '.join(found)}. {name} would restore other weights.")
    return found


def swaps_on_epoch(callback):
    """Returns True for a SwapEMAWeights that puts the moving averages into the model at the end of each epoch."""
    return isinstance(callback, keras.callbacks.SwapEMAWeights) and callback.swap_on_epoch


def settings(callback):
    """Returns {argument: JSON value} for a Keras callback whose attributes are known, and {} for other callbacks."""
    if not type(callback).__module__.startswith("keras.") or _attributes(callback) is None:
        return {}
    skipped = {*_attributes(callback), *_NO_STATE, "verbose", "filepath"}
    values = {key: value for key, value in vars(callback).items() if key[0] != "_" and key not in skipped}
    return {key: value for key, value in values.items() if value is None or isinstance(value, (bool, int, float, str))}


def get_state(callback):
    """Returns the result of a callback's `get_state()`, or a dict of the attributes that contain its state."""
    if _has_own_state(callback):
        return callback.get_state()
    state = {name: getattr(callback, name) for name in _attributes(callback) or () if hasattr(callback, name)}
    if isinstance(callback, keras.callbacks.CSVLogger) and os.path.isfile(callback.filename):
        state["size"] = os.path.getsize(callback.filename)
    return state


def set_state(callback, state):
    """Gives a callback a state that `get_state` returned."""
    if _has_own_state(callback):
        callback.set_state(state)
        return
    for name in _attributes(callback) or ():
        if name in state:
            setattr(callback, name, state[name])


def begin(callback, state, ended=False):
    """Calls `on_train_begin` of a callback. In a resumed run, `CSVLogger` keeps the rows of earlier epochs.

    If the run has `ended`, the file may have rows of a later run, which are kept too.
    """
    if not (isinstance(callback, keras.callbacks.CSVLogger) and "size" in state):
        callback.on_train_begin({})
        return
    if not ended and os.path.isfile(callback.filename) and os.path.getsize(callback.filename) > state["size"]:
        # Remove the rows that CSVLogger wrote after the checkpoint, since their epochs will be trained again.
        os.truncate(callback.filename, state["size"])
    append, callback.append = callback.append, True
    try:
        callback.on_train_begin({})
    finally:
        callback.append = append


def own_attributes(callback):
    """Returns {name: text or bytes} of a custom callback's attributes that checkpoints do not save."""
    if _has_own_state(callback) or type(callback).__module__.startswith("keras."):
        return {}
    keras_own = {*_NO_STATE, *(_attributes(callback) or ())}
    own = {key: value for key, value in vars(callback).items() if key[0] != "_" and key not in keras_own}
    # `repr` abbreviates large arrays, so take their bytes.
    return {key: value.tobytes() if isinstance(value, np.ndarray) else repr(value) for key, value in own.items()}


def _has_own_state(callback):
    return hasattr(callback, "get_state") and hasattr(callback, "set_state")


def _attributes(callback):
    """Returns the names of the attributes that contain a callback's state, or None if they are not known."""
    names = [cls.__name__ for cls in type(callback).__mro__ if cls.__module__.startswith("keras.")]
    return next((_ATTRIBUTES[name] for name in names if name in _ATTRIBUTES), None)


def pack(value, arrays, name):
    """Converts a state to JSON types. Moves its arrays to the dict `arrays`, under the keys "{name}/00000", ..."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return [pack(item, arrays, name) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: pack(item, arrays, name) for key, item in value.items()}}
    if isinstance(value, np.generic):
        return float(value) if value.dtype.kind == "V" else value.item()
    if ops.is_tensor(value) or isinstance(value, keras.Variable):
        value = ops.convert_to_numpy(value)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OSUMm":
        key = f"{name}/{sum(other.startswith(f'{name}/') for other in arrays):05d}"
        arrays[key] = storable(value)
        return {"array": key}
    expected = "Expected a state of lists, strings, numbers, None, arrays, and dicts whose keys are strings"
    raise TypeError(f"{expected}. Received: {value!r} of type {type(value).__name__}")


def unpack(value, arrays):
    """Returns the state that `pack` converted. Tuples have become lists."""
    if isinstance(value, list):
        return [unpack(item, arrays) for item in value]
    if isinstance(value, dict) and "array" in value:
        return arrays[value["array"]]
    if isinstance(value, dict):
        return {key: unpack(item, arrays) for key, item in value["dict"].items()}
    return value
