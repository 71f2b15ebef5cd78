import numpy as np
import pytest
from keras import ops

from keras_vit.layers import DropPath
from tests.errors import refuses


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_drops_whole_images_and_keeps_the_expectation(rate):
    n = 4000
    x = np.random.default_rng(0).uniform(1, 2, (n, 3, 4)).astype("float32")
    y = ops.convert_to_numpy(DropPath(rate, seed=0)(x, training=True))
    kept = y[:, 0, 0] != 0
    np.testing.assert_array_equal(y[~kept], 0)
    np.testing.assert_allclose(y[kept], x[kept] / (1 - rate), rtol=1e-6)
    # Within five standard deviations of a binomial.
    assert abs(kept.mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / n)


def test_does_nothing_outside_training_or_at_rate_0():
    x = np.random.default_rng(0).normal(size=(8, 3, 4)).astype("float32")
    np.testing.assert_array_equal(ops.convert_to_numpy(DropPath(0.9)(x)), x)
    np.testing.assert_array_equal(ops.convert_to_numpy(DropPath(0.9)(x, training=False)), x)
    np.testing.assert_array_equal(ops.convert_to_numpy(DropPath(0.0)(x, training=True)), x)


def test_seed_fixes_the_draws_and_each_call_draws_anew():
    x = np.ones((64, 1, 1), "float32")
    first, second = DropPath(0.5, seed=1), DropPath(0.5, seed=1)
    draws = [ops.convert_to_numpy(first(x, training=True)) for _ in range(2)]
    np.testing.assert_array_equal(ops.convert_to_numpy(second(x, training=True)), draws[0])
    assert (draws[0] != draws[1]).any()
    assert (ops.convert_to_numpy(DropPath(0.5, seed=2)(x, training=True)) != draws[0]).any()
    refuses("noise_shape", DropPath, 0.5, noise_shape=(1, 1, 1), error=TypeError)
