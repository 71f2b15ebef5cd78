import keras
import numpy as np
import pytest

from keras_vit.training import callback_states
from keras_vit.training.callback_states import get_state, named, pack, set_state, unpack
from keras_vit.training.fitting import train as train_run
from tests.errors import refuses

X, Y = np.random.default_rng(0).normal(size=(2, 8, 3)).astype("float32")


class Stop(keras.callbacks.Callback):
    """Stops the training in an epoch, or after a step, and has no state."""

    def __init__(self, epoch, step=None):
        super().__init__()
        self.at, self.step = epoch, step

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch == self.step

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training |= epoch == self.at


class Lists(keras.callbacks.Callback):
    """Changes an attribute in place, and has no way to save it."""

    def __init__(self, names=("a", "b")):
        super().__init__()
        self.names, self.seen, self.counts, self.since = names, [], {"a": 0}, None

    def on_train_begin(self, logs=None):
        self.since = object()

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(batch)
        self.counts["a"] += 1


def train(folder, callbacks=(), epochs=2, model=None, **options):
    if model is None:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
        model.compile("sgd", "mse")
    options = {"resume": folder, "save_every": 1, "callbacks": callbacks, "verbose": 0, **options}
    run = train_run(model, (X, Y), epochs, batch_size=2, **options)
    return model, run, run.history


def test_resume_stays_stopped_until_callback_is_removed(tmp_path, capsys):
    model = train(tmp_path, [Stop(1)], epochs=4)[0]
    again, run, history = train(tmp_path, [Stop(1)], epochs=6)
    assert "was stopped by Stop, in epoch 2: nothing is left to train" in capsys.readouterr().out
    assert history.epoch == [0, 1] and run.stopped == "Stop"
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
    assert train(tmp_path, [], epochs=4)[2].epoch == [0, 1, 2, 3]


def test_run_stopped_within_an_epoch_trains_the_rest(tmp_path, capsys):
    def averaged(name, *stop):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), "mse", jit_compile=False)
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        _, run, history = train(tmp_path / name, [swap, *stop], 2, model, save_every=9)
        return [run.step, *model.get_weights()], history.history

    (stopped, _), (again, _) = (averaged("parts", Stop(9, step=1)) for _ in range(2))
    assert "was stopped by Stop, in epoch 1: nothing" in capsys.readouterr().out
    (resumed, history), (whole, expected) = averaged("parts"), averaged("whole")
    assert (stopped[0], history) == (2, expected)
    assert all(map(np.array_equal, [*stopped, *resumed], [*again, *whole]))


def test_resume_without_lost_state_prints_nothing(tmp_path, capsys):
    train(tmp_path, [keras.callbacks.EarlyStopping("loss"), keras.callbacks.TerminateOnNaN()])
    train(tmp_path / "none", [])
    assert not capsys.readouterr().out


def test_unsaved_callback_state_is_named_once(tmp_path, capsys):
    class Mine(keras.callbacks.EarlyStopping):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            self.mine = epoch

    train(tmp_path, [Lists(), Mine("loss"), Stop(9)])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert said[0].startswith("The callback Lists changes counts, seen during training. Checkpoints do not save")
    assert said[1].startswith("The callback Mine('loss') changes mine during")


def test_missing_and_left_over_states_are_named(tmp_path, capsys):
    stopping = keras.callbacks.EarlyStopping
    train(tmp_path, [stopping("loss"), stopping("loss")])
    train(tmp_path, [stopping("loss"), stopping("val_loss")])
    said = capsys.readouterr().out
    assert "has no state of EarlyStopping('val_loss'). New callbacks start afresh." in said
    assert "has a state of EarlyStopping('loss') 2, which `callbacks` lacks. This state is not used." in said


def test_fit_refuses_unsavable_callbacks(tmp_path):
    weights = tmp_path / "a.weights.h5"
    counting = keras.callbacks.ModelCheckpoint(weights, save_freq=5, save_weights_only=True)
    refuses(r"ModelCheckpoint\('val_loss', 'a.weights.h5'\).*save_freq='epoch'", named, [counting])
    refuses("Received: BackupAndRestore", named, [keras.callbacks.BackupAndRestore(tmp_path)])
    refuses("to be Keras callbacks. Received: 3", named, [3])

    class Bad(Lists):
        def get_state(self):
            return {"bad": {1, 2}}

        def set_state(self, state):
            pass

    refuses(r"callback Bad cannot be saved.*Received: \{1, 2\}", train, tmp_path, [Bad()], error=TypeError)


def test_resume_refuses_other_callback_settings(tmp_path):
    def plateau(factor):
        return [keras.callbacks.ReduceLROnPlateau("loss", factor=factor, patience=1, min_delta=9)]

    train(tmp_path, plateau(0.5))
    refuses(r"callbacks.ReduceLROnPlateau\('loss'\).factor 0.5 and not 0.1", train, tmp_path, plateau(0.1), 3)
    assert len(train(tmp_path, plateau(0.1), 3, allow=["callbacks"])[2].epoch) == 3
    assert len(train(tmp_path, plateau(0.1), 4)[2].epoch) == 4


@pytest.mark.every_backend
def test_early_stopping_restores_the_validated_average(tmp_path):
    def swapped(name, callbacks):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9), "mse", jit_compile=False)
        _, _, history = train(tmp_path / name, callbacks, 4, model, validation_data=(X, Y))
        return min(history.history["val_loss"]), model.evaluate(X, Y, verbose=0), history.history["val_loss"][-1]

    stopping, swap = keras.callbacks.EarlyStopping, keras.callbacks.SwapEMAWeights
    best = stopping("val_loss", patience=9, restore_best_weights=True)
    for wrong in ([swap(), best], [best, swap(swap_on_epoch=True)]):
        refuses(r"swap_on_epoch=True. before EarlyStopping.'val_loss'., because", swapped, "refused", wrong)
    lowest, end, _ = swapped("best", [swap(swap_on_epoch=True), best])
    assert end == pytest.approx(lowest, rel=1e-5)
    _, end, last = swapped("last", [swap(swap_on_epoch=True), Stop(2)])
    assert end == pytest.approx(last, rel=1e-5)
    _, end, last = swapped("average", [swap()])
    assert end == pytest.approx(last, rel=1e-5)


# These attributes follow from the arguments or start again in each process (files, clocks, the current epoch).
NO_STATE = {
    *("params", "_model", "monitor_op", "min_delta", "_current_epoch"),
    *("csv_file", "writer", "keys", "append_header"),
    # These attributes have no meaning at the end of an epoch.
    *("_batches_seen_since_last_saving", "_last_batch_seen", "_ema_weights_in_model"),
    *("_prev_summary_state", "_epoch_start_time", "_batch_start_time", "_writers", "_should_write_train_graph"),
    *("_train_accumulated_time", "_previous_epoch_iterations"),
}


# `named` refuses these classes, or they need further packages.
OTHERS = {"BackupAndRestore", "Callback", "CallbackList", "OrbaxCheckpoint", "ProgbarLogger", "TensorBoard"}
OTHERS |= {"RemoteMonitor"}


def test_states_of_all_keras_callbacks_are_complete(tmp_path):
    best, last = tmp_path / "best.weights.h5", tmp_path / "last.weights.h5"
    callbacks = [
        keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(best, save_best_only=True, save_weights_only=True),
        keras.callbacks.ModelCheckpoint(last, save_weights_only=True),
        keras.callbacks.ReduceLROnPlateau(patience=1, cooldown=2),
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.History(),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate),
        keras.callbacks.TerminateOnNaN(),
    ]
    names = {type(callback).__name__ for callback in callbacks}
    assert names == {name for name in dir(keras.callbacks) if name[0].isupper()} - OTHERS
    first = []

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            first.extend({k: repr(v) for k, v in vars(callback).items()} for callback in callbacks)

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.3, use_ema=True), "mse")
    model.fit(X, Y, 4, epochs=5, validation_data=(-X, Y), callbacks=[*callbacks, Look()], verbose=0)
    for callback, before in zip(callbacks, first, strict=True):
        changed = {name for name, value in vars(callback).items() if repr(value) != before.get(name)}
        assert changed <= NO_STATE | set(get_state(callback)), type(callback).__name__
    stopping, best, last, plateau, *_ = map(get_state, callbacks)
    assert stopping["best"] == best["best"] and len(stopping["best_weights"]) == 2
    assert plateau["wait"] + plateau["cooldown_counter"] > 0 or plateau["best"] == best["best"]


@pytest.mark.backends("tensorflow")
def test_tensorboard_that_counts_batches_is_refused(tmp_path):
    pytest.importorskip("tensorboard")
    refuses("update_freq='epoch'", named, [keras.callbacks.TensorBoard(tmp_path, update_freq="batch")])
    assert named([keras.callbacks.TensorBoard(tmp_path)])


def test_states_of_callback_subclasses():
    class Inherits(keras.callbacks.ReduceLROnPlateau):
        pass

    class Overrides(keras.callbacks.EarlyStopping):
        def get_state(self):
            return {"mine": 1}

        def set_state(self, state):
            self.given = state

    first, second, own = Inherits(), Inherits(), Overrides()
    first.wait, first.best = 3, 0.25
    set_state(second, get_state(first))
    assert (second.wait, second.best, second.cooldown_counter) == (3, 0.25, 0)
    assert get_state(own) == {"mine": 1}
    set_state(own, {"mine": 2})
    assert own.given == {"mine": 2}


def test_csv_rows_after_the_checkpoint_are_dropped(tmp_path):
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


def test_pack_unpack_round_trip():
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
def test_pack_unsupported_value_is_refused(bad):
    refuses("Expected a state of lists.* Received", pack, bad, {}, "x", error=TypeError)
