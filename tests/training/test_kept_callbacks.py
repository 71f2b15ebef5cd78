import json

import keras
import numpy as np
import pytest

from keras_vit.training import Resume
from keras_vit.training.checkpoint_slots import CheckpointSlots

X, Y = np.random.default_rng(0).normal(size=(2, 8, 3)).astype("float32")


class Stop(keras.callbacks.Callback):
    """Stops the training in an epoch, and remembers nothing."""

    def __init__(self, epoch):
        super().__init__()
        self.at = epoch

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == self.at


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


def train(folder, callbacks=None, outer=(), epochs=2, model=None):
    if model is None:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
        eagerly = keras.backend.backend() == "tensorflow"
        model.compile("sgd", "mse", run_eagerly=eagerly, jit_compile=keras.backend.backend() == "jax")
    resume = Resume(folder, every=1, callbacks=callbacks)
    history = model.fit(X, Y, 2, epochs=epochs, callbacks=[*outer, resume], verbose=0)
    return model, resume, history


def test_a_callback_that_stopped_the_run_holds_as_long_as_it_is_given(tmp_path, capsys):
    model = train(tmp_path, [Stop(1)], epochs=4)[0]
    again, resume, history = train(tmp_path, [Stop(1)], epochs=6)
    assert "was stopped by Stop, in epoch 2: nothing is left to train" in capsys.readouterr().out
    assert history.epoch == [0, 1] and resume.stopped == "Stop"
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
    assert train(tmp_path, [], epochs=4)[2].epoch == [0, 1, 2, 3]


@pytest.mark.parametrize("first", [True, False])
def test_a_callback_beside_resume_is_not_kept_and_a_notice_says_so(tmp_path, capsys, first):
    for _ in range(2):
        model = train(tmp_path / "other", [])[0]
        callbacks = [Stop(1), Resume(tmp_path)] if first else [Resume(tmp_path), Stop(1)]
        history = model.fit(X, Y, 2, epochs=4, callbacks=callbacks, verbose=0)
        assert history.epoch == [0, 1]
    said = capsys.readouterr().out
    assert said.count("saves the state of no callback beside it: it is given those, Resume(folder, callbacks=") == 2
    assert "was stopped by a callback that was not given to Resume, in epoch 2" in said


def test_nothing_is_said_where_nothing_is_lost(tmp_path, capsys):
    train(tmp_path, [keras.callbacks.EarlyStopping("loss"), keras.callbacks.TerminateOnNaN()])
    train(tmp_path / "none", [])
    assert not capsys.readouterr().out


def test_a_callback_that_changes_and_cannot_be_saved_is_named_once(tmp_path, capsys):
    class Mine(keras.callbacks.EarlyStopping):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            self.mine = epoch

    train(tmp_path, [Lists(), Mine("loss"), Stop(9)])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert said[0].startswith("The callback Lists changes counts, seen while it trains, which no checkpoint holds")
    assert said[1].startswith("The callback Mine('loss') changes mine while")


def test_states_that_are_missing_or_left_over_are_named(tmp_path, capsys):
    stopping = keras.callbacks.EarlyStopping
    train(tmp_path, [stopping("loss"), stopping("loss")])
    train(tmp_path, [stopping("loss"), stopping("val_loss")])
    said = capsys.readouterr().out
    assert "holds no state of EarlyStopping('val_loss'): begun anew here." in said
    assert "holds the state of EarlyStopping('loss') 2, not given to this Resume: it is dropped." in said


def test_a_checkpoint_without_states_is_loaded(tmp_path, capsys):
    train(tmp_path, [keras.callbacks.ReduceLROnPlateau("loss")])
    slot = CheckpointSlots(tmp_path).newest()
    old = {key: value for key, value in slot.facts.items() if key not in ("callbacks", "stopped")}
    CheckpointSlots(tmp_path).save(old["step"], json.loads(json.dumps(old)), slot.arrays)
    assert train(tmp_path, [keras.callbacks.ReduceLROnPlateau("loss")], epochs=3)[2].epoch == [0, 1, 2]
    assert "holds no state of ReduceLROnPlateau('loss')" in capsys.readouterr().out


def test_what_cannot_be_kept_is_refused(tmp_path):
    stopping = keras.callbacks.EarlyStopping("loss")
    for outer in ([stopping], [Lists(), stopping]):
        with pytest.raises(ValueError, match=r"Expected EarlyStopping\('loss'\) to be given to Resume alone"):
            train(tmp_path, [stopping], outer)
    resume = Resume(tmp_path, callbacks=[stopping])
    with pytest.raises(ValueError, match="to be given to Resume alone"):
        train(tmp_path, [], [resume, stopping])
    with pytest.raises(ValueError, match="no BackupAndRestore"):
        Resume(tmp_path, callbacks=[keras.callbacks.BackupAndRestore(tmp_path)])
    with pytest.raises(ValueError, match="to be Keras callbacks. Received: 3"):
        Resume(tmp_path, callbacks=[3])

    class Bad(Lists):
        def get_state(self):
            return {"bad": {1, 2}}

        def set_state(self, state):
            pass

    with pytest.raises(TypeError, match=r"callback Bad cannot be saved.*Received: \{1, 2\}"):
        train(tmp_path, [Bad()])


def test_an_interrupted_fit_leaves_the_model_as_any_other(tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def __init__(self, event):
            super().__init__()
            setattr(self, event, self.now)

        def now(self, *args, **kwargs):
            raise KeyboardInterrupt

    class At(Lists):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, [At()])
    # On the way to its place.
    for event in ("on_train_batch_begin", "on_train_batch_end"):
        model = train(tmp_path / event, [], epochs=1)[0]
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, [], [Interrupt(event)], model=model)
        before = int(model.optimizer.iterations)
        history = model.fit(X, Y, 2, epochs=2, verbose=0)
        assert int(model.optimizer.iterations) == before + 8 and history.epoch == [0, 1], event
