"""A ViT small enough to build in every test, and what interrupts its training."""

import contextlib

import keras
import numpy as np

import keras_vit

TINY = {"image_size": 16, "patch_size": 4, "hidden_dim": 12, "num_layers": 2, "num_heads": 3, "mlp_dim": 20}
# A new head is zero, which would hide what comes before it.
TINY |= {"num_classes": 5, "head_init": "glorot_uniform"}


# The settings of timm's smallest ViT, "test_vit", which a folder of timm can name.
TEST_VIT = {"image_size": 32, "patch_size": 16, "hidden_dim": 64, "num_layers": 6, "num_heads": 2, "mlp_dim": 192}
TEST_VIT |= {"activation": "gelu"}


def build(**changes):
    """Builds the tiny ViT, with other arguments where they are given."""
    return keras_vit.ViT("B/16", **{**TINY, **changes})


def randomize(model, seed=0, scale=1):
    """Gives every weight its own random numbers, so that no two weights could be mixed up unseen."""
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(scale=scale, size=w.shape).astype("float32") for w in model.get_weights()])
    return model


def assert_close(actual, expected, **tolerance):
    """Compares arrays, tensors or variables one by one. Without a tolerance, they must be equal."""
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(*map(keras.ops.convert_to_numpy, (a, b)), **{"rtol": 0, **tolerance})


@contextlib.contextmanager
def dtype_policy(name):
    """Sets Keras' global dtype policy, and the former one at the end."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


class Losses(keras.callbacks.Callback):
    """The loss of each step of one call of `fit`."""

    def on_train_begin(self, logs=None):
        self.losses = []

    def on_epoch_begin(self, epoch, logs=None):
        self.total = 0.0

    def on_train_batch_end(self, batch, logs=None):
        # Logs are means of the epoch so far.
        total = float(logs["loss"]) * (batch + 1)
        self.losses.append(total - self.total)
        self.total = total


class Kill(keras.callbacks.Callback):
    """Interrupts a run as Ctrl-C would."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def on_train_batch_end(self, batch, logs=None):
        self.at -= 1
        if self.at == 0:
            raise KeyboardInterrupt
