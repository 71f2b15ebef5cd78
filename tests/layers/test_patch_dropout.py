import keras
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from keras import ops

from keras_vit.layers import PatchDropout


def numbered(batch, length):
    """Tokens that hold their own place, (batch, length, 1)."""
    return np.broadcast_to(np.arange(length, dtype="float32")[None, :, None], (batch, length, 1))


def drop(layer, x):
    return ops.convert_to_numpy(layer(x, training=True))


@given(num_patches=st.integers(1, 60), percent=st.integers(0, 99), prefix=st.integers(0, 3))
@example(num_patches=10, percent=80, prefix=0)
def test_keeps_a_share_in_order_with_the_prefix(num_patches, percent, prefix):
    y = drop(PatchDropout(percent / 100, num_prefix_tokens=prefix, seed=0), numbered(3, prefix + num_patches))[..., 0]
    # In whole numbers, where 10 patches at 0.8 leave exactly 2.
    assert y.shape == (3, prefix + max(1, num_patches * (100 - percent) // 100))
    for places in y:
        np.testing.assert_array_equal(places[:prefix], np.arange(prefix))
        assert (np.diff(places) > 0).all() and places[-1] < prefix + num_patches


def test_images_and_calls_and_seeds_differ():
    x = numbered(8, 100)
    layer = PatchDropout(0.5, seed=0)
    first, second = drop(layer, x), drop(layer, x)
    assert len({image.tobytes() for image in (*first, *second)}) == 16
    np.testing.assert_array_equal(drop(PatchDropout(0.5, seed=0), x), first)
    assert (drop(PatchDropout(0.5, seed=1), x) != first).any()


def test_each_patch_is_as_likely_to_stay():
    n, rate = 4000, 0.75
    counts = np.bincount(drop(PatchDropout(rate, seed=0), numbered(n, 16)).astype(int).ravel(), minlength=16)
    assert np.abs(counts - n * (1 - rate)).max() < 5 * np.sqrt(n * rate * (1 - rate))


def test_values_are_not_rescaled_and_stay_with_their_image():
    x = np.random.default_rng(0).normal(size=(3, 10, 4)).astype("float32")
    for image, kept in zip(x, drop(PatchDropout(0.5), x), strict=True):
        rows = {row.tobytes() for row in image}
        assert all(row.tobytes() in rows for row in kept)


def test_does_nothing_outside_training_or_at_rate_0():
    x = np.random.default_rng(0).normal(size=(3, 10, 4)).astype("float32")
    np.testing.assert_array_equal(ops.convert_to_numpy(PatchDropout(0.9)(x)), x)
    np.testing.assert_array_equal(drop(PatchDropout(0.0), x), x)


@pytest.mark.backends("tensorflow")
def test_length_known_at_run_time_only():
    inputs = keras.Input((None, 4))
    x = keras.layers.Dense(4)(inputs)
    x = PatchDropout(0.8, num_prefix_tokens=1, seed=0)(x)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(x)))
    model.compile("sgd", "mse")
    for length in (11, 21):
        tokens = np.random.default_rng(0).normal(size=(2, length, 4)).astype("float32")
        before = [ops.convert_to_numpy(w) for w in model.weights]
        model.train_on_batch(tokens, np.ones((2, 1)))
        assert not any(np.array_equal(ops.convert_to_numpy(w), b) for w, b in zip(model.weights, before, strict=True))
        np.testing.assert_array_equal(model.predict(tokens, verbose=0), model.predict(tokens, verbose=0))
