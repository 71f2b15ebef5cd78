import os

import keras
import numpy as np

from keras_vit.training import callback_states


class KeptCallbacks:
    """The callbacks that were given to `Resume`, which tells them of the training, and saves their states.

    Args:
        callbacks: Callbacks of Keras or the user's own, in the order in which they are called.

    Attributes: `names`, one for each; `stopper`, the name of the one that stopped the training, or None.

    Raises:
        ValueError: If one is no callback, or also saves and loads the model.
    """

    def __init__(self, callbacks):
        self.callbacks = keras.tree.flatten(list(callbacks))
        self.names, kinds = [], []
        self.stopper = None
        self._model = None
        self._first = []
        self._told = set()
        for callback in self.callbacks:
            if not isinstance(callback, keras.callbacks.Callback):
                raise ValueError(f"Expected `callbacks` to be Keras callbacks. Received: {callback!r}")
            if isinstance(callback, keras.callbacks.BackupAndRestore):
                raise ValueError("Expected no BackupAndRestore in `callbacks`: Resume saves and loads the run itself.")
            told = (getattr(callback, key, None) for key in ("monitor", "filepath", "filename"))
            told = ", ".join(repr(os.path.basename(os.fspath(t))) for t in told if isinstance(t, (str, os.PathLike)))
            kinds.append(type(callback).__name__ + (f"({told})" if told else ""))
            same = kinds.count(kinds[-1])
            self.names.append(f"{kinds[-1]} {same}" if same > 1 else kinds[-1])

    def set_params(self, params):
        self._refuse_twice(params)
        for callback in self.callbacks:
            # A copy: who has this very dict got it from `fit`.
            callback.set_params(dict(params))

    def set_model(self, model):
        self._model = model
        for callback in self.callbacks:
            callback.set_model(model)

    def begin(self, params, slot):
        """Calls `on_train_begin`, and says whose states are not in the checkpoint.

        Args:
            params: Dict, those that `fit` gave to `Resume`.
            slot: The `Slot` from which the run goes on, or None.
        """
        self._refuse_twice(params)
        self.stopper = None
        self._told = set()
        saved = _saved(slot)
        for callback, name in zip(self.callbacks, self.names, strict=True):
            callback_states.begin(callback, saved.get(name, {}))
        self._remember()
        if slot is None:
            return
        new = [name for name, state in self._states() if state and name not in saved]
        if new:
            print(f"{str(slot.path)!r} holds no state of {', '.join(new)}: begun anew here.")
        gone = sorted(name for name, state in saved.items() if state and name not in self.names)
        if gone:
            print(f"{str(slot.path)!r} holds the state of {', '.join(gone)}, not given to this Resume: it is dropped.")

    def tell(self, event, *args):
        """Calls a method of each."""
        for callback, name in zip(self.callbacks, self.names, strict=True):
            stopped = self._model.stop_training
            getattr(callback, event)(*args)
            if self._model.stop_training and not stopped:
                self.stopper = name

    def pack(self, arrays):
        """All states: what JSON can hold is returned, and arrays are added to `arrays`.

        Raises:
            TypeError: If a callback's `get_state` returns what cannot be saved.
        """
        self._say_what_is_lost()
        packed = []
        for name, state in self._states():
            try:
                packed.append([name, callback_states.pack(state, arrays, "callbacks")])
            except TypeError as error:
                raise TypeError(f"The state of the callback {name} cannot be saved. {error}") from None
        return packed

    def unpack(self, slot):
        """Gives each the state that it has in a checkpoint."""
        saved = _saved(slot)
        for callback, name in zip(self.callbacks, self.names, strict=True):
            if name in saved:
                callback_states.set_state(callback, saved[name])
        self._remember()

    def _states(self):
        return [(name, callback_states.get_state(c)) for c, name in zip(self.callbacks, self.names, strict=True)]

    def _refuse_twice(self, params):
        twice = [name for c, name in zip(self.callbacks, self.names, strict=True) if c.params is params]
        if twice:
            raise ValueError(
                f"Expected {', '.join(twice)} to be given to Resume alone, which calls its callbacks itself. "
                "Received: also in the callbacks of fit."
            )

    def _remember(self):
        self._first = [_attributes(callback) for callback in self.callbacks]

    def _say_what_is_lost(self):
        """Names each callback that has changed since training began, and has no way to save that."""
        for callback, name, first in zip(self.callbacks, self.names, self._first, strict=True):
            if name in self._told or callback_states.has_own_state(callback):
                continue
            now = _attributes(callback)
            changed = sorted(key for key in now if now[key] != first.get(key))
            if changed:
                self._told.add(name)
                print(
                    f"The callback {name} changes {', '.join(changed)} while it trains, which no checkpoint holds: a "
                    "resumed run begins with it anew. Give it get_state() and set_state(state) to have it saved."
                )


def _saved(slot):
    """The states of a checkpoint by name; one of an older version holds none."""
    states = slot.facts.get("callbacks", []) if slot is not None else []
    return {name: callback_states.unpack(state, slot.arrays) for name, state in states}


def _attributes(callback):
    """What can be compared of a callback's attributes, but for those that Keras' own code uses."""
    of_keras = set()
    for cls in type(callback).__mro__:
        if cls.__module__.startswith("keras."):
            codes = (getattr(method, "__code__", None) for method in vars(cls).values())
            of_keras.update(*(code.co_names for code in codes if code))
    return {key: _trace(value) for key, value in vars(callback).items() if key not in of_keras}


def _trace(value):
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        # NaN equals NaN here.
        return repr(value)
    if isinstance(value, dict):
        return [(repr(key), _trace(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [_trace(item) for item in value]
    return (id(value), hash(value.tobytes())) if isinstance(value, np.ndarray) else id(value)
