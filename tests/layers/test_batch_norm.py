import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers.batch_norm import BatchNorm


@pytest.mark.every_backend
@pytest.mark.parametrize("training, trainable", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_equals_keras_in_outputs_and_statistics(training, trainable, dtype):
    images = np.random.default_rng(0).normal(2, 3, size=(4, 5, 3, 6)).astype("float32")
    results = []
    for kind in (BatchNorm, keras.layers.BatchNormalization):
        layer = kind(momentum=0.9, epsilon=1e-3, dtype=dtype, trainable=trainable)
        layer.build(images.shape)
        layer.gamma.assign(np.arange(6))
        outputs = [layer(images, training=training) for _ in range(2)]
        results.append([ops.convert_to_numpy(ops.cast(x, "float32")) for x in (*outputs, *layer.weights)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
