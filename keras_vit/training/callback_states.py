"""What Keras' callbacks remember from one epoch to the next, and how it is written to a file."""

import os

import keras
import numpy as np
from keras import ops

# Keras has no way to ask for it. tests/training/test_callback_states.py finds an attribute that is missing here.
_ATTRIBUTES = {
    "EarlyStopping": ("wait", "best", "best_epoch", "stopped_epoch", "best_weights"),
    "History": ("epoch", "history"),
    "ModelCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    "OrbaxCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_total_batches_seen"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_train_batch", "_global_test_batch"),
}


def get_state(callback):
    """The state of a callback.

    Args:
        callback: A `keras.callbacks.Callback`.

    Returns:
        What its `get_state` returns, or the state of a callback of Keras; {} where none is known.

    Example:

    >>> get_state(keras.callbacks.ReduceLROnPlateau())
    {'wait': 0, 'best': None, 'cooldown_counter': 0}
    """
    if has_own_state(callback):
        return callback.get_state()
    state = {name: getattr(callback, name) for name in _attributes(callback) if hasattr(callback, name)}
    if isinstance(callback, keras.callbacks.CSVLogger) and os.path.isfile(callback.filename):
        state["size"] = os.path.getsize(callback.filename)
    return state


def set_state(callback, state):
    """Gives a callback the state that `get_state` returned.

    Args:
        callback: A callback of the same class.
        state: Dict.
    """
    if has_own_state(callback):
        callback.set_state(state)
        return
    for name in _attributes(callback):
        if name in state:
            setattr(callback, name, state[name])


def begin(callback, state):
    """Calls `on_train_begin`; a `CSVLogger` goes on after the rows that it had written.

    Args:
        callback: A `keras.callbacks.Callback`.
        state: Dict that `get_state` returned; {} where the callback begins anew.
    """
    if not (isinstance(callback, keras.callbacks.CSVLogger) and "size" in state):
        callback.on_train_begin()
        return
    if os.path.isfile(callback.filename) and os.path.getsize(callback.filename) > state["size"]:
        # Rows of epochs that are trained again.
        os.truncate(callback.filename, state["size"])
    append, callback.append = callback.append, True
    try:
        callback.on_train_begin()
    finally:
        callback.append = append


def has_own_state(callback):
    """Whether a callback has `get_state` and `set_state`."""
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def pack(value, arrays, name):
    """Takes a state apart into what JSON can hold and arrays.

    Args:
        value: Dict with strings for keys, list, tuple, string, number, bool, None, NumPy array or tensor, within each
            other as they like.
        arrays: Dict to which the arrays are added, as "name/00000" and so on.
        name: String.

    Returns:
        What JSON can hold, for `unpack`. A tuple comes back as a list.

    Raises:
        TypeError: If something else is in it.

    Example:

    >>> arrays = {}
    >>> packed = pack({"best": 0.5, "weights": [np.zeros(2)]}, arrays, "state")
    >>> packed
    {'dict': {'best': 0.5, 'weights': [{'array': 'state/00000'}]}}
    >>> unpack(packed, arrays)
    {'best': 0.5, 'weights': [array([0., 0.])]}
    """
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
    raise TypeError(
        "Expected a state of dicts with strings for keys, lists, strings, numbers, None and arrays. "
        f"Received: {value!r} of type {type(value).__name__}"
    )


def unpack(value, arrays):
    """Puts together what `pack` took apart."""
    if isinstance(value, list):
        return [unpack(item, arrays) for item in value]
    if isinstance(value, dict) and "array" in value:
        return arrays[value["array"]]
    if isinstance(value, dict):
        return {key: unpack(item, arrays) for key, item in value["dict"].items()}
    return value


def storable(array):
    """An array in a type that NumPy can write; float32 holds the smaller floats exactly."""
    return array if array.dtype.kind in "biuf" else array.astype("float32")


def _attributes(callback):
    classes = {getattr(keras.callbacks, name, None): attributes for name, attributes in _ATTRIBUTES.items()}
    return next((classes[cls] for cls in type(callback).__mro__ if cls in classes), ())
