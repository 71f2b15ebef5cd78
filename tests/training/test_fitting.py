import os

import keras
import numpy as np
import pytest

from keras_vit.data import from_dataframe
from keras_vit.data.source import tf
from keras_vit.training import fit
from keras_vit.training.epochs import Epochs
from tests.errors import refuses
from tests.training import killed
from tests.training.test_resume import X, Y, assert_equal, make_model, operation_steps


@pytest.mark.long
def test_fit_resumes_a_dataset_of_from_dataframe(tmp_path):
    for i in range(6):
        keras.utils.save_img(tmp_path / f"{i}.png", np.full((4, 4, 3), 40 * i), scale=False)
    table = {"path": [f"{i}.png" for i in range(6)], "label": [0, 1] * 3}

    def train(epochs, name):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
        data = from_dataframe(table, directory=tmp_path, image_size=4, batch_size=2)
        fit(model, lambda epoch: data, epochs, resume=tmp_path / name, verbose=0)
        return model

    whole = train(2, "whole")
    train(1, "parts")
    assert_equal(train(2, "parts"), whole)


def make_record():
    """Returns a list, and a callback that adds the arguments of its calls to the list."""
    calls = []

    def add(*arguments):
        calls.append((*arguments, callback.params["epochs"], callback.params["steps"]))

    events = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")
    callback = keras.callbacks.LambdaCallback(**dict.fromkeys(events, add))
    return calls, callback


@pytest.mark.filterwarnings("error::UserWarning")
def test_fit_equals_model_fit(tmp_path):
    def dataset(epoch=0):
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)

    plain, ours = make_model(), make_model()
    seeds = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: Epochs((X, Y)).set_seeds(epoch))
    (recorded, record), (ours_recorded, our_record) = make_record(), make_record()
    options = {"validation_data": (X, Y), "verbose": 0}
    expected = plain.fit(dataset(), epochs=3, shuffle=False, callbacks=[seeds, record], **options)
    history = fit(ours, dataset, 3, resume=tmp_path / "b", callbacks=[our_record], **options)
    assert_equal(ours, plain)
    assert history.history == expected.history
    assert ours_recorded == recorded and [call[-2:] for call in recorded[1:-1]] == [(3, 6)] * 6


@pytest.mark.parametrize(
    "labels, message",
    [
        (np.arange(24) % 3 + 1, r"from 0 to 2, .* Received: labels from 1 to 3. .* subtract 1"),
        (np.array(["cat", "dog"] * 12), r"Received: strings, such as '(cat|dog)'"),
        (None, "Received: only images"),
    ],
)
def test_labels_that_do_not_fit_the_model_are_refused(tmp_path, labels, message):
    data = (X, labels) if labels is not None else tf.data.Dataset.from_tensor_slices(X).batch(8)
    refuses(message, fit, make_model(), data, 1, resume=tmp_path, batch_size=24, verbose=0)
    assert not list(tmp_path.glob("step_*"))


class Stop(keras.callbacks.Callback):
    """Stops the run at a batch or at the end of an epoch."""

    def __init__(self, batch=None):
        super().__init__()
        self._batch = batch

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training |= batch == self._batch

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training |= self._batch is None


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("batch, step", [(2, 3), (None, 6)])
def test_stopped_run_on_data_of_unknown_length_continues_at_the_next_batch(tmp_path, batch, step):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).filter(lambda x, y: True)
    whole, stopped, resumed = (make_model() for _ in range(3))
    fit(whole, data, 2, resume=tmp_path / "whole", verbose=0)
    fit(stopped, data, 2, resume=tmp_path / "run", callbacks=[Stop(batch)], verbose=0)
    assert operation_steps(tmp_path / "run")[-1] == step
    fit(resumed, data, 2, resume=tmp_path / "run", verbose=0)
    assert_equal(resumed, whole)


def test_run_with_nothing_left_keeps_the_rows_of_a_later_run(tmp_path):
    def stage(name):
        log = keras.callbacks.CSVLogger(tmp_path / "log.csv", append=True)
        fit(make_model(), (X, Y), 2, resume=tmp_path / name, callbacks=[log], batch_size=8, verbose=0)
        return (tmp_path / "log.csv").read_text().splitlines()

    assert len(stage("head")) == 3
    rows = stage("all weights")
    assert len(rows) == 5 and stage("head") == stage("all weights") == rows


def test_own_loss_or_step_may_take_any_labels(tmp_path):
    class FromOne(keras.losses.SparseCategoricalCrossentropy):
        def call(self, y_true, y_pred):
            return super().call(y_true - 1, y_pred)

    class Own(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, *args, **kwargs):
            return keras.ops.mean(keras.ops.square(y_pred))

    model = make_model()
    model.compile("sgd", FromOne(from_logits=True))
    fit(model, (X, Y + 1), 1, resume=tmp_path / "loss", verbose=0)
    model = Own(model.inputs, model.outputs)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(model, tf.data.Dataset.from_tensor_slices(X).batch(8), 1, resume=tmp_path / "step", verbose=0)


def test_nested_logs_of_own_step_are_joined(tmp_path):
    class Own(keras.Model):
        def train_step(self, *arguments):
            return {**super().train_step(*arguments), "more": {"extra": 2.0}}

    model = make_model()
    model = Own(model.inputs, model.outputs)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert fit(model, (X, Y), 2, resume=tmp_path, verbose=0).history["extra"] == [2.0, 2.0]


def test_epochs_set_seeds_shuffles_each_epoch_differently():
    orders = []
    for epoch in (0, 1, 0):
        Epochs(killed.make_dataset).set_seeds(epoch)
        orders.append(np.concatenate([y for _, y in killed.make_dataset(epoch).as_numpy_iterator()]))
    assert np.array_equal(orders[0], orders[2])
    assert not np.array_equal(orders[0], orders[1])


def test_new_dataset_of_an_epoch_gets_one_call_of_on_epoch_end():
    class Counted(keras.utils.PyDataset):
        calls = 0

        def __len__(self):
            return 2

        def __getitem__(self, i):
            return np.full((1, 2), i), np.zeros(1)

        def on_epoch_end(self):
            self.calls += 1

    epochs = Epochs(lambda epoch: Counted())
    epochs.first_batch()
    for epoch in (0, 3):
        epochs.batches(epoch)
        assert epochs.latest.calls == 1


@pytest.mark.parametrize("mode", killed.TRAINERS)
def test_resumed_trainer_is_bit_identical(tmp_path, mode):
    killed.train_small(mode, tmp_path / "alone")
    with pytest.raises(KeyboardInterrupt):
        killed.train_small(mode, tmp_path / "parted", last=6 if mode == "two_fits" else 8)
    killed.train_small(mode, tmp_path / "parted")
    alone, parted = killed.end(tmp_path / "alone"), killed.end(tmp_path / "parted")
    for name in alone | parted:
        np.testing.assert_array_equal(parted[name], alone[name])
    assert alone["rate"] < 0.01 or mode == "two_fits"


@pytest.mark.long
@pytest.mark.every_backend
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")
def test_killed_run_is_bit_identical():
    (counts,) = killed.kills(keras.backend.backend(), 3, modes=["plain"]).values()
    assert (counts["kills"], counts["resumed"], counts["damaged"]) == (3, 3, 0), counts
    assert counts["identical"] and counts["stopped"], counts
