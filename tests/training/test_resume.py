import h5py
import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import training
from keras_vit.training.checkpoints import CheckpointSlots
from keras_vit.training.fitting import train
from tests.errors import refuses
from tests.tiny import Kill, assert_close
from tests.training.killed import stateful

EPOCHS = 3
X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = np.random.default_rng(1).integers(3, size=24)


def make_model(units=3, optimizer=None, metrics=("accuracy",), **options):
    keras.utils.set_random_seed(1)
    layers = [keras.Input((4,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.4)]
    model = keras.Sequential([*layers, keras.layers.Dropout(0.1, seed=3), keras.layers.Dense(units)])
    if optimizer is None:
        rate = keras.optimizers.schedules.CosineDecay(0.02, 12, warmup_target=0.1, warmup_steps=3)
        optimizer = keras.optimizers.AdamW(rate, use_ema=True, gradient_accumulation_steps=2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # TensorFlow would take longer to compile than to train.
    if keras.backend.backend() == "tensorflow":
        options |= {"jit_compile": False, "run_eagerly": "steps_per_execution" not in options}
    model.compile(optimizer, loss, metrics=list(metrics), **options)
    return model


def fit(model, folder, *callbacks, epochs=EPOCHS, x=X, save_every=2, **options):
    """Six steps an epoch, of shuffled NumPy arrays."""
    given = {"resume": folder, "save_every": save_every, "callbacks": callbacks, "batch_size": 4, "verbose": 0}
    return training.fit(model, (x, Y), epochs, **given, **options)


def interrupted(folder, step, **options):
    with pytest.raises(KeyboardInterrupt):
        fit(make_model(), folder, Kill(step), **options)


def operation_steps(folder):
    """Returns the steps of the checkpoints in a folder."""
    return sorted(int(path.stem.split("_")[1]) for path in folder.glob("step_*.npz"))


def state(model):
    """All numbers of a model and its optimizer."""
    return [ops.convert_to_numpy(v) for v in model.variables + model.optimizer.variables]


def assert_equal(first, second):
    assert_close(state(first), state(second))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run that nothing interrupts, and its history."""
    model = make_model()
    return model, fit(model, tmp_path_factory.mktemp("alone")).history


# The interruptions: before the first checkpoint, at the last and first step of an epoch, and three times.
@pytest.mark.parametrize("steps", [(1,), (6,), (7,), pytest.param((8, 1, 9), marks=pytest.mark.every_backend)])
def test_resumed_run_is_bit_identical(tmp_path, alone, steps):
    for step in steps:
        interrupted(tmp_path, step)
    model = make_model()
    history = fit(model, tmp_path)
    assert_equal(model, alone[0])
    assert history.history == alone[1]
    assert history.epoch == list(range(EPOCHS))


def test_resume_skips_a_damaged_checkpoint(tmp_path, alone, capsys):
    interrupted(tmp_path, 11)
    newest, before = sorted(tmp_path.iterdir())[:-3:-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    model = make_model()
    fit(model, tmp_path)
    said = capsys.readouterr().out
    assert f"{str(newest)!r} is damaged" in said
    assert f"Resuming from {str(before)!r}: epoch 2 of 3, batch 2, step 8." in said
    assert_equal(model, alone[0])


def test_resume_finished_run_can_be_prolonged(tmp_path, alone, capsys):
    first, model = make_model(), make_model()
    history = fit(first, tmp_path, epochs=2).history
    assert fit(model, tmp_path, epochs=2).history == history
    assert "nothing is left to train" in capsys.readouterr().out
    assert_equal(model, first)
    model = make_model()
    assert fit(model, tmp_path).history == alone[1]
    assert_equal(model, alone[0])


def fit_stateful(folder, *others):
    """Trains until EarlyStopping ends the run; returns all results, which interruptions must not change."""
    (folder / "files").mkdir(parents=True, exist_ok=True)
    model = make_model(optimizer=keras.optimizers.SGD(0.1, momentum=0.5, use_ema=True, ema_momentum=0.8))
    *callbacks, counter = stateful(folder / "files")
    options = {"validation_data": (X, Y), "batch_size": 8, "verbose": 0, "resume": folder / "run", "save_every": 2}
    run = train(model, (X, Y), 20, callbacks=[*others, *callbacks, counter], **options)
    numbers = [*state(model), *counter.mean, model.optimizer.learning_rate, counter.batches]
    for name in ("best.weights.h5", "last.weights.h5"):
        with h5py.File(folder / "files" / name) as file:
            file.visititems(lambda _, item: numbers.append(item[()]) if isinstance(item, h5py.Dataset) else None)
    log = (folder / "files" / "log.csv").read_text()
    return numbers, (run.history.history, run.history.epoch, counter.epochs, log, run.step, run.stopped)


class InterruptAt(keras.callbacks.Callback):
    """Interrupts like Ctrl-C when an event happens for the n-th time."""

    def __init__(self, event, times=1):
        super().__init__()
        self.left = times
        setattr(self, event, self.count)

    def count(self, *args, **kwargs):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_resume_restores_the_states_of_callbacks(tmp_path, capsys):
    stateful_alone = fit_stateful(tmp_path / "alone")
    history, epochs, seen, log, step, stopped = stateful_alone[1]
    assert stopped == "EarlyStopping('val_loss')" and seen == epochs and len(epochs) > 3 and step == 3 * len(epochs)
    assert history["learning_rate"][-1] < 0.6 * history["learning_rate"][0]
    assert len(log.splitlines()) == len(epochs) + 1
    # These events are in the middle of an epoch, and between the events at its end.
    ends = [("on_epoch_end", 2), ("on_epoch_begin", 2), ("on_test_begin", 1)]
    for event, times in [("on_train_batch_end", 3), *ends, ("on_train_batch_begin", 6)]:
        with pytest.raises(KeyboardInterrupt):
            fit_stateful(tmp_path, InterruptAt(event, times))
    # A stopped run trains no more.
    for is_stopped in (False, True):
        numbers, others = fit_stateful(tmp_path)
        assert_close(numbers, stateful_alone[0])
        assert others == stateful_alone[1]
        said = f"was stopped by EarlyStopping('val_loss'), in epoch {len(epochs)}: nothing" in capsys.readouterr().out
        assert said == is_stopped


def test_run_stopped_by_other_code_than_a_callback_continues(tmp_path):
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 6

        def __getitem__(self, i):
            model.stop_training = i == self.stop
            return X[4 * i : 4 * i + 4], Y[4 * i : 4 * i + 4]

    runs = []
    for folder, stop in (("alone", None), ("parts", 3), ("parts", None)):
        model, Batches.stop = make_model(), stop
        history = training.fit(model, Batches(), 2, resume=tmp_path / folder, shuffle=False, verbose=0)
        runs.append((model, len(history.epoch)))
    assert [epochs for _, epochs in runs] == [2, 1, 2] and int(runs[1][0].optimizer.iterations) < 6
    assert_equal(runs[2][0], runs[0][0])


# Keras has no steps_per_execution on PyTorch.
@pytest.mark.backends("tensorflow")
def test_resume_with_several_steps_per_execution(tmp_path):
    alone = make_model(steps_per_execution=3)
    fit(alone, tmp_path / "alone", save_every=3)
    with pytest.raises(KeyboardInterrupt):
        fit(make_model(steps_per_execution=3), tmp_path / "run", Kill(4), save_every=3)
    resumed = make_model(steps_per_execution=3)
    fit(resumed, tmp_path / "run", save_every=3)
    assert_equal(resumed, alone)


@pytest.mark.backends("tensorflow")
def test_resume_after_an_execution_of_fewer_steps(tmp_path):
    class KillAtEpochEnd(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    # Of the 6 steps of an epoch, Keras numbers the last one 7.
    alone, resumed = (make_model(steps_per_execution=4) for _ in range(2))
    fit(alone, tmp_path / "alone", save_every=4)
    with pytest.raises(KeyboardInterrupt):
        fit(make_model(steps_per_execution=4), tmp_path / "run", KillAtEpochEnd(), save_every=4)
    assert operation_steps(tmp_path / "run") == [4]
    fit(resumed, tmp_path / "run", save_every=4)
    assert operation_steps(tmp_path / "run")[-1] == 18
    assert_equal(resumed, alone)


def test_resume_non_finite_loss_stops_the_run(tmp_path, capsys):
    x = X.copy()
    x[np.random.default_rng(2).integers(24)] = np.nan
    model = make_model()
    before = model.get_weights()
    assert len(fit(model, tmp_path, x=x, save_every=1, shuffle=False).history["loss"]) == 1
    said = capsys.readouterr().out
    assert "The loss is nan at step" in said
    assert len(operation_steps(tmp_path)) == min(3, int(said.split("at step ")[1].split(".")[0]) - 1) > 0
    assert all(np.isfinite(a).all() for a in state(model))
    assert not all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def test_resume_non_finite_weight_stops_the_run(tmp_path, capsys):
    class Break(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                kernel = self.model.layers[-1].kernel
                kernel.assign(kernel * np.inf)

    class Restore(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            kernel = self.model.layers[-1].kernel
            kernel.assign(kernel * 0)

    model = make_model()
    fit(model, tmp_path, Break(), Restore())
    assert "is not finite at step 4." in capsys.readouterr().out
    assert operation_steps(tmp_path) == [2]
    # The weights of the checkpoint are assigned after `on_train_end`.
    assert all(np.isfinite(a).all() for a in state(model)) and np.any(model.layers[-1].kernel)


def test_resume_refuses_checkpoints_of_another_run(tmp_path):
    interrupted(tmp_path, 5)
    files = sorted(tmp_path.iterdir())
    refuses(r"another model: .*\[8, 3\].* instead of .*\[8, 5\]", fit, make_model(units=5), tmp_path)
    refuses(r"step_0+4.npz' contains another optimizer: adam_w", fit, make_model(optimizer="sgd"), tmp_path)
    refuses("another run: seed 0 and not 1", fit, make_model(), tmp_path, seed=1)
    refuses(r"another run: data.class_weight None and not", fit, make_model(), tmp_path, class_weight={0: 2.0})
    options = {"resume": tmp_path, "allow": ["data"], "batch_size": 4, "verbose": 0}
    refuses("more than 4 batches", training.fit, make_model(), (X[:8], Y[:8]), 1, **options)
    assert sorted(tmp_path.iterdir()) == files


class Noise(keras.layers.Layer):
    """A custom layer without a config."""

    def __init__(self, function):
        super().__init__()
        self.function, self.strength = function, 0.1

    def call(self, x):
        return self.function(x)


def small(rate=0.1, drop=0.1, activation="relu", loss="mse", own=()):
    layers = [keras.Input((4,)), keras.layers.Dropout(drop), keras.layers.Dense(3, activation), *own]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(rate), loss)
    return model


def fit_small(folder, model, x=X, batch_size=4, epochs=1, **options):
    data = (x, np.zeros((len(x), 3)))
    return training.fit(model, data, epochs, resume=folder, batch_size=batch_size, verbose=0, **options)


def test_resume_names_changed_settings_unless_allowed(tmp_path):
    fit_small(tmp_path, small())
    own = [Noise(lambda x: x)]
    fit_small(tmp_path / "own", small(own=own))
    with pytest.raises(ValueError, match="model.layers.noise.strength 0.1 and not 0.2"):
        own[0].strength = 0.2
        fit_small(tmp_path / "own", small(own=own))
    changes = {
        "model.layers.dropout.config.rate 0.1 and not 0.3": small(drop=0.3),
        "model.layers.dense.config.activation 'relu' and not 'gelu'": small(activation="gelu"),
        "optimizer.nesterov": small(),
        "learning_rate 0.1.* and not 0.2": small(0.2),
        "loss.config 'mse' and not 'mae'": small(loss="mae"),
    }
    changes["optimizer.nesterov"].optimizer.nesterov = True
    for message, model in changes.items():
        before = model.get_weights()
        with pytest.raises(ValueError, match=f"another run: {message}.*`allow=") as error:
            fit_small(tmp_path, model)
        np.testing.assert_array_equal(before[0], model.get_weights()[0])
        part = str(error.value).split("allow=('")[1].split("'")[0]
        assert len(fit_small(tmp_path, model, allow=[part]).epoch) == 1
        assert part != "learning_rate" or float(model.optimizer.learning_rate) == pytest.approx(0.2)
    for options in ({"batch_size": 5}, {"x": X[:20]}, {"x": X + 1}, {"shuffle": False}):
        refuses(r"another run: data.*`allow=\('data',\)`", fit_small, tmp_path, small(), **options)
    refuses("`allow`.*'everything'", fit_small, tmp_path, small(), allow=["everything"])
    # Numbers of NumPy equal the numbers in the checkpoint.
    assert len(fit_small(tmp_path, small(), epochs=2, seed=np.int64(0)).epoch) == 2


@pytest.mark.parametrize("batches, steps", [(4, 2), (4, 8), (None, 4)])
def test_fit_refuses_epochs_that_share_a_dataset_pass(tmp_path, batches, steps):
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((X[:16], np.zeros((16, 3)))).batch(4)
    endless = data.repeat() if batches is None else data
    options = {"resume": tmp_path, "verbose": 0}
    message = f"Received: steps_per_epoch={steps}.*a function of the epoch"
    refuses(message, training.fit, small(), endless, 2, steps_per_epoch=steps, **options)
    refuses(
        "`steps_per_epoch` for data that never ends", training.fit, small(), lambda epoch: data.repeat(), 2, **options
    )
    arrays = X[:16], np.zeros((16, 3))
    refuses("at most 1 `steps_per_epoch`", training.fit, small(), arrays, 2, steps_per_epoch=steps, **options)
    assert not operation_steps(tmp_path)
    if steps < 8:
        training.fit(small(), lambda epoch: endless, 2, steps_per_epoch=steps, **options)
        assert max(operation_steps(tmp_path)) == 2 * steps
    training.fit(small(), data, 2, steps_per_epoch=4, resume=tmp_path / "whole", verbose=0)


def test_resume_with_other_metrics_restarts_them(tmp_path, alone, capsys):
    interrupted(tmp_path, 5)
    model = make_model(metrics=["sparse_categorical_crossentropy"])
    fit(model, tmp_path)
    assert "other metrics than the checkpoint" in capsys.readouterr().out
    assert_equal(model, alone[0])


def test_resume_full_disk_does_not_end_the_run(tmp_path, alone, capsys, monkeypatch):
    save = CheckpointSlots.save

    def full_at_step_4(self, step, facts, arrays):
        if step == 4:
            raise OSError(28, "No space left on device")
        return save(self, step, facts, arrays)

    monkeypatch.setattr(CheckpointSlots, "save", full_at_step_4)
    model = make_model()
    fit(model, tmp_path)
    assert "No checkpoint could be written at step 4" in capsys.readouterr().out
    assert_equal(model, alone[0])


def test_fit_invalid_arguments_are_refused(tmp_path):
    for name in ("keep", "save_every", "batch_size", "steps_per_epoch"):
        refuses(f"`{name}`.*at least 1", fit_small, tmp_path, small(), **{name: 0})
    refuses("`resume` instead of `initial_epoch`", fit_small, tmp_path, small(), initial_epoch=1, error=TypeError)
    refuses("at least 1. Received: .0. rows", fit_small, tmp_path, small(), X[:0])
    refuses("Expected a compiled model. Received: 'mine'", fit_small, tmp_path, keras.Sequential(name="mine"))
    for check in (training.preflight, lambda *given: training.fit(*given, 1, resume=tmp_path)):
        refuses("of arrays, such as .* Received: ndarray, list", check, small(), (X, Y.tolist()))
