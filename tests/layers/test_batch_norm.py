import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers.batch_norm import BatchNorm
from tests.tiny import assert_close


@pytest.mark.every_backend
@pytest.mark.parametrize("training, trainable", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_equals_keras_in_outputs_and_statistics(training, trainable, dtype):
    images = np.random.default_rng(0).normal(2, 3, size=(4, 5, 3, 6)).astype("float32")
    options = {"dtype": dtype, "trainable": trainable, "gamma_initializer": keras.initializers.RandomNormal(1, seed=0)}
    results = []
    for layer in (BatchNorm(momentum=0.9, **options), keras.layers.BatchNormalization(momentum=0.9, **options)):
        outputs = [layer(images, training=training) for _ in range(2)]
        results.append([ops.cast(x, "float32") for x in (*outputs, *layer.weights)])
    assert_close(*results, rtol=1e-5, atol=1e-6)
