import keras
import numpy as np
import pytest

from keras_vit.training import TerminateOnNaN


class Hidden(keras.layers.Layer):
    """A layer whose weight does not reach the loss."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(2,), initializer="ones")

    def call(self, x):
        return x + keras.ops.where(keras.ops.isfinite(self.scale), 0.0, 0.0)


@pytest.mark.every_backend
@pytest.mark.parametrize("wrong, epochs", [(0.0, 3), (np.nan, 1)])
def test_training_stops_at_hidden_nan_weights(wrong, epochs, capsys):
    hidden = Hidden()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), hidden])
    model.compile("sgd", "mse")
    hidden.scale.assign([1.0, wrong])
    history = model.fit(np.ones((4, 2)), np.zeros((4, 2)), epochs=3, callbacks=[TerminateOnNaN()], verbose=0)
    assert len(history.history["loss"]) == epochs and np.isfinite(history.history["loss"]).all()
    assert ("1 weights are NaN or infinite, such as" in capsys.readouterr().out) == bool(np.isnan(wrong))
