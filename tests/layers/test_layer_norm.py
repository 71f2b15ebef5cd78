import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import kernels
from keras_vit.layers.layer_norm import LayerNorm

X = np.random.default_rng(0).normal(3, 2, (2, 5, 8)).astype("float32")


@pytest.mark.every_backend
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("options", [{}, {"center": False, "scale": False}])
def test_layer_norm_equals_the_layer_of_keras(dtype, options):
    outputs = []
    for kind in (LayerNorm, keras.layers.LayerNormalization):
        layer = kind(epsilon=1e-6, dtype=dtype, **options)
        layer.build(X.shape)
        layer.set_weights([np.linspace(0.5, 2, num=8) for _ in layer.weights])
        outputs.append(layer(X))
        assert keras.backend.standardize_dtype(outputs[-1].dtype) == layer.compute_dtype
    # A unit in the last place is 2^-7 of a value in bfloat16 and 2^-10 in float16.
    rtol = {"float32": 1e-6, "mixed_float16": 2**-10}.get(dtype, 2**-7)
    actual, expected = (ops.convert_to_numpy(ops.cast(y, "float32")) for y in outputs)
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernel_of_gpus_equals_the_layer_of_keras(dtype):
    layer = keras.layers.LayerNormalization(epsilon=1e-6, dtype=dtype)
    layer.build(X.shape)
    layer.set_weights([np.linspace(0.5, 2, num=8), np.linspace(-1, 1, num=8)])
    x = ops.convert_to_tensor(X, dtype)
    y = kernels.layer_norm(x, layer.gamma, layer.beta, layer.epsilon)
    assert y.dtype == x.dtype
    actual, expected = (ops.convert_to_numpy(ops.cast(each, "float32")) for each in (y, layer(x)))
    np.testing.assert_allclose(actual, expected, atol={"float32": 1e-5, "bfloat16": 0.05}[dtype])


def test_outputs_have_the_compute_dtype_on_other_devices():
    layer = LayerNorm(dtype="mixed_bfloat16")
    # As on a GPU. A layer of Keras does not cast the inputs of its normalization.
    with keras.device("meta"):
        layer.build((None, 8))
        for dtype in ("float32", "bfloat16"):
            assert keras.backend.standardize_dtype(layer(ops.zeros((2, 8), dtype)).dtype) == "bfloat16"
