import numpy as np
from keras import ops

from keras_vit.models.efficientnet.inverted_bottleneck import InvertedBottleneck


def test_norms_learn_with_the_official_momentum():
    layer = InvertedBottleneck(8, 3)
    x = np.random.default_rng(0).normal(size=(4, 4, 4, 8)).astype("float32")
    layer.build(x.shape)
    inside = ops.convert_to_numpy(layer.expand_conv(x))
    layer(x, training=True)
    moved = ops.convert_to_numpy(layer.expand_norm.moving_mean)
    np.testing.assert_allclose(moved, 0.01 * inside.mean((0, 1, 2)), rtol=1e-4, atol=1e-6)
    layer(x)
    np.testing.assert_array_equal(ops.convert_to_numpy(layer.expand_norm.moving_mean), moved)


def test_drop_path_drops_images_only_in_training():
    layer = InvertedBottleneck(8, 3, drop_path_rate=0.5, seed=0)
    x = np.random.default_rng(0).normal(size=(16, 4, 4, 8)).astype("float32")
    layer.build(x.shape)
    dropped = np.abs(ops.convert_to_numpy(layer(x, training=True)) - x).max((1, 2, 3)) == 0
    assert 0 < dropped.sum() < 16
    assert (np.abs(ops.convert_to_numpy(layer(x)) - x).max((1, 2, 3)) > 0).all()
