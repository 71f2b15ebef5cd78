"""Calls the callbacks given to `Resume`, and saves and restores their states."""

import os

import keras
import numpy as np
from keras import ops

from keras_vit.training.checkpoints import storable

# Attributes in which Keras' callbacks keep state; Keras has no API for them.
# tests/training/test_kept_callbacks.py finds missing ones.
_ATTRIBUTES = {
    "EarlyStopping": ("wait", "best", "best_epoch", "stopped_epoch", "best_weights"),
    "History": ("epoch", "history"),
    "ModelCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    "OrbaxCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_total_batches_seen"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_train_batch", "_global_test_batch"),
}


class KeptCallbacks:
    """Callbacks given to `Resume`, `named` uniquely; `stopper` names the one that stopped the run, or is None."""

    def __init__(self, callbacks):
        self.named, self.stopper = {}, None
        self._model = None
        # The attributes at the start, by name, of callbacks that could lose them.
        self._first = {}
        for callback in keras.tree.flatten(list(callbacks)):
            if not isinstance(callback, keras.callbacks.Callback):
                raise ValueError(f"Expected `callbacks` to be Keras callbacks. Received: {callback!r}")
            if isinstance(callback, keras.callbacks.BackupAndRestore):
                raise ValueError("Expected no BackupAndRestore in `callbacks`: Resume saves and loads the run itself.")
            told = (getattr(callback, key, None) for key in ("monitor", "filepath", "filename"))
            told = ", ".join(repr(os.path.basename(os.fspath(t))) for t in told if isinstance(t, (str, os.PathLike)))
            name = kind = type(callback).__name__ + (f"({told})" if told else "")
            while name in self.named:
                name = f"{kind} {int(name.removeprefix(kind) or 1) + 1}"
            self.named[name] = callback

    def set_params(self, params):
        self._refuse_twice(params)
        for callback in self.named.values():
            # A copy: holding `params` itself means it was also given to `fit`.
            callback.set_params(dict(params))

    def set_model(self, model):
        self._model = model
        for callback in self.named.values():
            callback.set_model(model)

    def begin(self, params, slot):
        """Calls `on_train_begin`, and reports callbacks that are new or missing compared to the checkpoint `slot`."""
        self._refuse_twice(params)
        self.stopper = None
        saved = _saved(slot)
        for name, callback in self.named.items():
            _begin(callback, saved.get(name, {}))
        self._remember()
        if slot is None:
            return
        if new := [name for name, callback in self.named.items() if name not in saved and get_state(callback)]:
            print(f"{str(slot.path)!r} holds no state of {', '.join(new)}: starting afresh.")
        if gone := sorted(name for name, state in saved.items() if state and name not in self.named):
            print(f"{str(slot.path)!r} holds the state of {', '.join(gone)}, not given to this Resume: it is dropped.")

    def tell(self, event, *args, **kwargs):
        """Calls a method of each callback."""
        for name, callback in self.named.items():
            stopped = self._model.stop_training
            getattr(callback, event)(*args, **kwargs)
            if self._model.stop_training and not stopped:
                self.stopper = name

    def pack(self, arrays):
        """Returns the states as JSON types; adds their arrays to the dict `arrays`."""
        self._warn_of_lost_state()
        packed = []
        for name, callback in self.named.items():
            try:
                packed.append([name, pack(get_state(callback), arrays, "callbacks")])
            except TypeError as error:
                raise TypeError(f"The state of the callback {name} cannot be saved. {error}") from None
        return packed

    def unpack(self, slot):
        """Restores the callbacks' states from a checkpoint."""
        for name, state in _saved(slot).items():
            if name in self.named:
                set_state(self.named[name], state)
        self._remember()

    def _refuse_twice(self, params):
        twice = [name for name, callback in self.named.items() if callback.params is params]
        if twice:
            raise ValueError(
                f"Expected {', '.join(twice)} to be given only to Resume, which calls its callbacks itself. "
                "Received: also in the callbacks of fit."
            )

    def _remember(self):
        unsaved = {name: callback for name, callback in self.named.items() if not _has_own_state(callback)}
        self._first = {name: _own_attributes(callback) for name, callback in unsaved.items()}

    def _warn_of_lost_state(self):
        """Reports callbacks, once each, that changed since training began but cannot save their state."""
        for name, first in list(self._first.items()):
            now = _own_attributes(self.named[name])
            if changed := sorted(key for key, value in now.items() if value != first.get(key)):
                del self._first[name]
                print(
                    f"The callback {name} changes {', '.join(changed)} during training, which checkpoints do not save: "
                    "a resumed run starts it afresh. Give it get_state() and set_state(state) to have it saved."
                )


def get_state(callback):
    """Returns a callback's `get_state()`, or the known attributes of Keras' own; {} for others."""
    if _has_own_state(callback):
        return callback.get_state()
    state = {name: getattr(callback, name) for name in _attributes(callback) if hasattr(callback, name)}
    if isinstance(callback, keras.callbacks.CSVLogger) and os.path.isfile(callback.filename):
        state["size"] = os.path.getsize(callback.filename)
    return state


def set_state(callback, state):
    """Restores a state returned by `get_state`."""
    if _has_own_state(callback):
        callback.set_state(state)
        return
    for name in _attributes(callback):
        if name in state:
            setattr(callback, name, state[name])


def _begin(callback, state):
    """Calls `on_train_begin`; a `CSVLogger` continues after the checkpoint's rows."""
    if not (isinstance(callback, keras.callbacks.CSVLogger) and "size" in state):
        callback.on_train_begin()
        return
    if os.path.isfile(callback.filename) and os.path.getsize(callback.filename) > state["size"]:
        # Rows of epochs to be trained again.
        os.truncate(callback.filename, state["size"])
    append, callback.append = callback.append, True
    try:
        callback.on_train_begin()
    finally:
        callback.append = append


def _has_own_state(callback):
    return hasattr(callback, "get_state") and hasattr(callback, "set_state")


def _attributes(callback):
    """Returns the names of a Keras callback's state attributes."""
    classes = {getattr(keras.callbacks, name, None): attributes for name, attributes in _ATTRIBUTES.items()}
    return next((classes[cls] for cls in type(callback).__mro__ if cls in classes), ())


def _own_attributes(callback):
    """Returns a callback's attributes as text, without those that Keras' code uses."""
    of_keras = set()
    for cls in type(callback).__mro__:
        if cls.__module__.startswith("keras."):
            codes = (getattr(method, "__code__", None) for method in vars(cls).values())
            of_keras.update(*(code.co_names for code in codes if code))
    own = {key: value for key, value in vars(callback).items() if key not in of_keras}
    # `repr` leaves out most of a large array.
    return {key: value.tobytes() if isinstance(value, np.ndarray) else repr(value) for key, value in own.items()}


def _saved(slot):
    """Returns a checkpoint's states by name; {} for a checkpoint of an older version."""
    states = slot.facts.get("callbacks", []) if slot is not None else []
    return {name: unpack(state, slot.arrays) for name, state in states}


def pack(value, arrays, name):
    """Converts a state to JSON types; its arrays go into the dict `arrays` as "name/00000" and so on."""
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
    """Inverts `pack`, except that tuples become lists."""
    if isinstance(value, list):
        return [unpack(item, arrays) for item in value]
    if isinstance(value, dict) and "array" in value:
        return arrays[value["array"]]
    if isinstance(value, dict):
        return {key: unpack(item, arrays) for key, item in value["dict"].items()}
    return value
