import keras
import numpy as np
from keras import ops

import keras_vit
from tests.models.small import images


def build(**changes):
    """The smallest BiT model: its norms have 32 groups."""
    tiny = {"image_size": (32, 41), "stages": (2, 1), "width_factor": 0.5, "num_classes": 5}
    return keras_vit.BiT("R50x1", **{**tiny, "head_init": "glorot_uniform", **changes})


def test_pool_padding_changes_only_the_edge():
    lowest, zeros = build(), build(pool_padding="zeros")
    zeros.set_weights(lowest.get_weights())
    x = images(1, 32, 41, 3)
    taps = [keras.Model(m.input, [m.get_layer("root_pool").output, m.output]) for m in (lowest, zeros)]
    (a, y), (b, z) = ([ops.convert_to_numpy(out) for out in tap.predict_on_batch(x)] for tap in taps)
    np.testing.assert_array_equal(a[:, 1:-1, 1:-1], b[:, 1:-1, 1:-1])
    np.testing.assert_array_equal(np.maximum(a[:, 0], 0), b[:, 0])
    assert np.abs(a - b).max() > 0.1 and np.abs(y - z).max() > 1e-4
