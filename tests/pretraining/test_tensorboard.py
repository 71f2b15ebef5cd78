import keras
import numpy as np
import pytest

from keras_vit.pretraining import SimMIM, TensorBoardReconstructions
from keras_vit.pretraining.plots import displayable
from tests import tiny

tf = pytest.importorskip("tensorflow", reason="it writes TensorBoard's logs")


def test_pictures_are_written_each_few_epochs_and_after_the_last(tmp_path):
    model = SimMIM(tiny.build(include_preprocessing=True), mask_unit=4, seed=0)
    images = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3)).astype("uint8")
    model.compile("adam")
    callback = TensorBoardReconstructions(tmp_path / "logs", images[:2], every=2)
    model.fit(images, epochs=3, verbose=0, callbacks=[callback])
    pictures = {}
    for file in (tmp_path / "logs").iterdir():
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                assert value.tag == "reconstructions"
                width, height, *encoded = tf.make_ndarray(value.tensor)
                assert (int(width), int(height)) == (48, 16)
                pictures[event.step] = [tf.io.decode_png(image).numpy() for image in encoded]
    assert sorted(pictures) == [1, 2]
    # The last pictures are of the model as it is now.
    expected = [displayable(part) for part in model.reconstruct(images[:2])]
    for i in range(2):
        difference = pictures[2][i].astype(int) - np.concatenate([part[i] for part in expected], axis=1)
        assert np.abs(difference).max() <= 1


def test_a_training_that_is_stopped_has_a_last_picture_too(tmp_path):
    model = SimMIM(tiny.build(include_preprocessing=True), mask_unit=4, seed=0)
    images = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3)).astype("uint8")
    model.compile("adam")
    callback = TensorBoardReconstructions(tmp_path / "logs", images[:2], every=10)
    # No loss falls that much.
    stopping = keras.callbacks.EarlyStopping("loss", min_delta=1e6, patience=2)
    model.fit(images, epochs=50, verbose=0, callbacks=[callback, stopping])
    (file,) = (tmp_path / "logs").iterdir()
    events = [tf.compat.v1.Event.FromString(r.numpy()) for r in tf.data.TFRecordDataset(str(file))]
    assert [event.step for event in events if event.summary.value] == [2]


def test_every_is_positive():
    with pytest.raises(ValueError, match="`every`"):
        TensorBoardReconstructions("logs", np.zeros((1, 16, 16, 3)), every=0)
