import keras
import numpy as np
import pytest

from keras_vit.inspection import TensorBoardAttention, attention_overlay, attention_rollout
from tests import tiny
from tests.pictures import logged

pytest.importorskip("tensorflow", reason="it writes TensorBoard's logs")


@pytest.mark.parametrize("nested", [False, True])
def test_tensorboard_pictures_every_2_epochs_and_at_end(nested, tmp_path):
    vit = tiny.build(include_preprocessing=True, image_size=(16, 24))
    model = keras.Sequential([keras.Input((16, 24, 3)), vit]) if nested else vit
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (4, 16, 24, 3)).astype("float32"), np.arange(4)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callback = TensorBoardAttention(tmp_path / "logs", images[:2], every=2, model=vit if nested else None)
    # The other call of `fit` stops in its third epoch, since no loss falls that much.
    stopping = [] if nested else [keras.callbacks.EarlyStopping("loss", min_delta=1e6, patience=2)]
    model.fit(images, labels, epochs=3 if nested else 50, verbose=0, callbacks=[callback, *stopping])
    pictures = logged(tmp_path / "logs", "attention")
    assert sorted(pictures) == [1, 2] and pictures[2].shape == (2, 16, 24, 3)
    # The last pictures show the trained model.
    expected = attention_overlay(images[:2], attention_rollout(model, images[:2]))
    assert np.abs(pictures[2].astype(int) - expected).max() <= 1
