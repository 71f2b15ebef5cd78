import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import Dense, dense


@pytest.fixture(params=[False, True], ids=["linear", "convolution"])
def by_convolution(request, monkeypatch):
    """As on a processor of each make; on TensorFlow and JAX that is the same."""
    monkeypatch.setattr(dense, "processor", lambda: "AuthenticAMD avx512_bf16" if request.param else "GenuineIntel")
    monkeypatch.setattr(dense, "MIN_ROWS", {"float32": 1, "bfloat16": 1})
    return request.param


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_it_reloads_and_keeps_its_dtype(by_convolution, dtype, tmp_path):
    layer = Dense(6, activation="tanh", dtype=dtype)
    model = keras.Sequential([keras.Input((5, 8)), layer])
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    expected = layer(x)
    assert keras.backend.standardize_dtype(expected.dtype) == layer.compute_dtype
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras").layers[-1]
    assert type(reloaded) is Dense
    np.testing.assert_array_equal(*(ops.convert_to_numpy(ops.cast(y, "float32")) for y in (reloaded(x), expected)))


@pytest.mark.parametrize("shape", [(3, 8), (2, 5, 8), (2, 3, 4, 8), (0, 5, 8), (2, 0, 8)])
def test_it_is_what_keras_computes(by_convolution, shape):
    layer, keras_layer = Dense(6), keras.layers.Dense(6)
    rng = np.random.default_rng(0)
    for each in (layer, keras_layer):
        each.build((None, *shape[1:]))
    keras_layer.set_weights([rng.normal(size=weight.shape) for weight in keras_layer.weights])
    layer.set_weights(keras_layer.get_weights())
    x = rng.normal(size=shape).astype("float32")
    expected = ops.convert_to_numpy(keras_layer(x))
    actual = ops.convert_to_numpy(layer(x))
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_inputs_of_another_dtype_are_promoted(by_convolution):
    layer = Dense(6)
    layer.build((None, 8))
    x = np.arange(16).reshape(2, 8)
    expected = x @ ops.convert_to_numpy(layer.kernel)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x.astype("int32"))), expected, rtol=1e-5)


def test_a_subclass_of_another_call_is_not_quantized():
    class Doubled(Dense):
        def call(self, inputs, training=None):
            return 2 * super().call(inputs, training=training)

    layers = Dense(6), Doubled(6)
    for layer in layers:
        layer.build((None, 8))
    layers[0].quantize("int8")
    assert layers[0].quantization_mode == "int8"
    with pytest.raises(NotImplementedError):
        layers[1].quantize("int8")


def test_gradients_are_those_of_the_product(by_convolution):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 5, 8)).astype("float32"), rng.normal(size=(16, 5, 6)).astype("float32")
    weights = [rng.normal(size=(8, 6)).astype("float32"), rng.normal(size=6).astype("float32")]
    model = keras.Sequential([keras.Input((5, 8)), Dense(6)])
    model.set_weights(weights)
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.train_on_batch(x, y)
    kernel, bias = weights
    error = 2 * (x @ kernel + bias - y) / y.size
    np.testing.assert_allclose(
        model.get_weights()[0], kernel - np.einsum("btk,btn->kn", x, error), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(model.get_weights()[1], bias - error.sum((0, 1)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_go_through_to_the_layer_before(by_convolution, frozen):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 5, 8)).astype("float32"), rng.normal(size=(16, 5, 3)).astype("float32")
    first, second = rng.normal(size=(8, 6)).astype("float32"), rng.normal(size=(6, 3)).astype("float32")
    model = keras.Sequential([keras.Input((5, 8)), Dense(6, use_bias=False), Dense(3, use_bias=False)])
    model.set_weights([first, second])
    model.layers[1].trainable = not frozen
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.train_on_batch(x, y)
    error = 2 * (x @ first @ second - y) / y.size
    of_first = np.einsum("btk,btn->kn", x, error @ second.T)
    of_second = np.einsum("btk,btn->kn", x @ first, error)
    np.testing.assert_allclose(ops.convert_to_numpy(model.layers[0].kernel), first - of_first, rtol=1e-4, atol=1e-5)
    expected = second if frozen else second - of_second
    np.testing.assert_allclose(ops.convert_to_numpy(model.layers[1].kernel), expected, rtol=1e-4, atol=1e-5)


def test_lora_acts_and_trains(by_convolution):
    layer = Dense(6)
    layer.build((None, 5, 8))
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    kernel = ops.convert_to_numpy(layer.kernel)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), x @ kernel, rtol=1e-5, atol=1e-5)
