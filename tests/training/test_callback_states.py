import keras
import numpy as np
import pytest

from keras_vit.training import callback_states
from keras_vit.training.callback_states import get_state, pack, set_state, unpack

X, Y = np.random.default_rng(0).normal(size=(2, 8, 3)).astype("float32")
VALIDATION = (-X, Y)
# What follows from the arguments or is begun anew with each process: files, clocks, the current epoch.
NO_STATE = {
    *("params", "_model", "monitor_op", "min_delta", "_current_epoch"),
    *("csv_file", "writer", "keys", "append_header"),
    *("_prev_summary_state", "_epoch_start_time", "_batch_start_time", "_writers", "_should_write_train_graph"),
    *("_train_accumulated_time", "_previous_epoch_iterations"),
}


def keras_callbacks(folder):
    """One of each of Keras' own that `Resume` may be given and that needs no further package."""
    yield keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True)
    yield keras.callbacks.ModelCheckpoint(folder / "best.weights.h5", save_best_only=True, save_weights_only=True)
    yield keras.callbacks.ModelCheckpoint(folder / "last.weights.h5", save_freq=3, save_weights_only=True)
    yield keras.callbacks.ReduceLROnPlateau(patience=1, cooldown=2)
    yield keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    yield keras.callbacks.CSVLogger(folder / "log.csv")
    yield keras.callbacks.History()
    yield keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)
    yield keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate)
    yield keras.callbacks.TerminateOnNaN()
    yield keras.callbacks.RemoteMonitor


OTHERS = {"BackupAndRestore", "Callback", "CallbackList", "OrbaxCheckpoint", "ProgbarLogger", "TensorBoard"}


def test_no_state_of_a_callback_of_keras_is_forgotten(tmp_path):
    *callbacks, remote = keras_callbacks(tmp_path)
    names = {type(callback).__name__ for callback in callbacks} | {remote.__name__}
    assert names == {name for name in dir(keras.callbacks) if name[0].isupper()} - OTHERS
    first = []

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            first.extend({k: repr(v) for k, v in vars(callback).items()} for callback in callbacks)

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.3, use_ema=True), "mse", jit_compile=keras.backend.backend() == "jax")
    model.fit(X, Y, 4, epochs=5, validation_data=VALIDATION, callbacks=[*callbacks, Look()], verbose=0)
    for callback, before in zip(callbacks, first, strict=True):
        changed = {name for name, value in vars(callback).items() if repr(value) != before.get(name)}
        assert changed <= NO_STATE | set(get_state(callback)), type(callback).__name__
    stopping, best, last, plateau, *_ = map(get_state, callbacks)
    assert stopping["best"] == best["best"] and len(stopping["best_weights"]) == 2
    assert last["_batches_seen_since_last_saving"] == 10 % 3
    assert plateau["wait"] + plateau["cooldown_counter"] > 0 or plateau["best"] == best["best"]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorBoard needs TensorFlow")
def test_tensorboard_goes_on_counting(tmp_path):
    pytest.importorskip("tensorboard")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse", jit_compile=False)
    board = keras.callbacks.TensorBoard(tmp_path)
    model.fit(X, Y, 4, epochs=2, validation_data=VALIDATION, callbacks=[board], verbose=0)
    assert get_state(board) == {"_global_train_batch": 4, "_global_test_batch": 4}


def test_a_subclass_has_the_state_of_its_class():
    class Mine(keras.callbacks.ReduceLROnPlateau):
        pass

    mine, other = Mine(), Mine()
    mine.wait, mine.best = 3, 0.25
    set_state(other, get_state(mine))
    assert (other.wait, other.best, other.cooldown_counter) == (3, 0.25, 0)


def test_own_states_come_before_those_of_keras():
    class Mine(keras.callbacks.EarlyStopping):
        def get_state(self):
            return {"mine": 1}

        def set_state(self, state):
            self.given = state

    mine = Mine()
    assert get_state(mine) == {"mine": 1}
    set_state(mine, {"mine": 2})
    assert mine.given == {"mine": 2}


def test_the_rows_of_a_file_after_the_checkpoint_are_dropped(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    states = []
    for append in (False, True):
        path = tmp_path / f"{append}.csv"
        path.write_text("from before\n")
        logger = keras.callbacks.CSVLogger(path, append=append)
        callback_states.begin(logger, {})
        for epoch in range(3):
            states.append(get_state(logger))
            logger.on_epoch_end(epoch, {"loss": epoch})
        whole = path.read_text()
        assert whole.startswith("from before") == append
        again = keras.callbacks.CSVLogger(path, append=append)
        callback_states.begin(again, states[-2])
        assert again.append == append
        for epoch in (1, 2):
            again.on_epoch_end(epoch, {"loss": epoch})
        again.on_train_end()
        assert path.read_text() == whole


def test_what_is_packed_comes_back():
    tensor = keras.ops.ones((2,), "bfloat16")
    state = {
        "plain": [None, True, -3, 0.1, "text", float("inf")],
        "numbers": [np.float32(0.1), np.int64(7), np.bool_(True)],
        "arrays": {"a": np.arange(3), "array": [np.zeros((2, 0), "uint8")]},
        "tensor": tensor,
        "tuple": (1, (2,)),
        "dict": {},
    }
    arrays = {"other": np.zeros(1)}
    back = unpack(pack(state, arrays, "x"), arrays)
    assert sorted(arrays) == ["other", "x/00000", "x/00001", "x/00002"]
    assert back["plain"] == state["plain"] and back["numbers"] == [float(np.float32(0.1)), 7, True]
    np.testing.assert_array_equal(back["arrays"]["a"], np.arange(3))
    assert back["arrays"]["array"][0].shape == (2, 0) and back["tensor"].dtype == "float32"
    assert back["tuple"] == [1, [2]] and back["dict"] == {}


@pytest.mark.parametrize("bad", [{1: 2}, {"a": {3}}, {"a": object()}, {"a": np.array(["text"])}, {"a": 1j}])
def test_what_cannot_be_saved_is_named(bad):
    with pytest.raises(TypeError, match="Expected a state of dicts .* Received"):
        pack(bad, {}, "x")
