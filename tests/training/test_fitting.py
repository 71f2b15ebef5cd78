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
from tests.training.test_resume import X, Y, assert_equal, make_model


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


@pytest.mark.filterwarnings("error::UserWarning")
def test_fit_equals_model_fit(tmp_path):
    def dataset(epoch=0):
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)

    plain, ours = make_model(), make_model()
    seeds = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: Epochs((X, Y)).set_seeds(epoch))
    expected = plain.fit(dataset(), epochs=3, validation_data=(X, Y), shuffle=False, verbose=0, callbacks=[seeds])
    calls = []
    record = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs=None: calls.append("begin"),
        on_train_end=lambda logs=None: calls.append("end"),
        on_epoch_end=lambda epoch, logs=None: calls.append((epoch, record.params["epochs"], record.params["steps"])),
    )
    history = fit(ours, dataset, 3, resume=tmp_path / "b", callbacks=[record], validation_data=(X, Y), verbose=0)
    assert_equal(ours, plain)
    assert history.history == expected.history
    assert calls == ["begin", (0, 3, 6), (1, 3, 6), (2, 3, 6), "end"]


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
