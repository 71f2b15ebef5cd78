import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.activations import gelu_tanh
from keras_vit.layers.dense import Dense


def built(*kinds):
    layers = [kind(6) for kind in kinds]
    for layer in layers:
        layer.build((None, 8))
    return layers


@pytest.mark.every_backend
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_dense_reloads_with_its_dtype(dtype, tmp_path):
    layer = Dense(6, activation="tanh", dtype=dtype)
    model = keras.Sequential([keras.Input((5, 8)), layer])
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    expected = layer(x)
    assert keras.backend.standardize_dtype(expected.dtype) == layer.compute_dtype
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras").layers[-1]
    assert type(reloaded) is Dense
    np.testing.assert_array_equal(*(ops.convert_to_numpy(ops.cast(y, "float32")) for y in (reloaded(x), expected)))


@pytest.mark.every_backend
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 4, 8), (0, 5, 8), (2, 0, 8)])
def test_dense_equals_keras_dense(shape):
    layer, keras_layer = built(Dense, keras.layers.Dense)
    rng = np.random.default_rng(0)
    keras_layer.set_weights([rng.normal(size=weight.shape) for weight in keras_layer.weights])
    layer.set_weights(keras_layer.get_weights())
    x = rng.normal(size=shape).astype("float32")
    expected = ops.convert_to_numpy(keras_layer(x))
    actual = ops.convert_to_numpy(layer(x))
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.every_backend
@pytest.mark.parametrize("activation", [None, gelu_tanh])
def test_gradients_equal_keras_dense(activation):
    layers = [[kind(6, activation=activation), kind(4)] for kind in (Dense, keras.layers.Dense)]
    ours, keras_own = models = [keras.Sequential([keras.Input((3, 8)), *pair]) for pair in layers]
    rng = np.random.default_rng(0)
    start = [rng.normal(size=weight.shape).astype("float32") for weight in ours.weights]
    x, y = rng.normal(size=(5, 3, 8)), rng.normal(size=(5, 3, 4))
    for model in models:
        model.set_weights(start)
        # With a rate of 1, a step subtracts the gradient.
        model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=False)
        model.train_on_batch(x, y)
    for before, actual, expected in zip(start, ours.get_weights(), keras_own.get_weights(), strict=True):
        assert np.abs(expected - before).max() > 0.01
        np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.every_backend
def test_inputs_of_another_dtype_are_promoted():
    layer = Dense(6)
    layer.build((None, 8))
    x = np.arange(16).reshape(2, 8)
    expected = x @ ops.convert_to_numpy(layer.kernel)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x.astype("int32"))), expected, rtol=1e-5)


@pytest.mark.every_backend
def test_activation_may_return_another_dtype():
    layer = Dense(6, activation=lambda x: ops.softmax(ops.cast(x, "float32")), dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(layer(np.ones((2, 3, 8), "float32")).dtype) == "float32"


def test_subclass_with_another_call_is_not_quantized():
    class Doubled(Dense):
        def call(self, inputs, training=None):
            return 2 * super().call(inputs, training=training)

    layers = built(Dense, Doubled)
    layers[0].quantize("int8")
    assert layers[0].quantization_mode == "int8"
    with pytest.raises(NotImplementedError):
        layers[1].quantize("int8")


def test_lora_weights_merge_into_a_layer_without_lora():
    layers = built(Dense, Dense)
    layers[0].enable_lora(2, lora_alpha=5)
    rng, state = np.random.default_rng(0), {}
    layers[0].set_weights([rng.normal(size=w.shape) for w in layers[0].get_weights()])
    layers[0].save_own_variables(state)
    layers[1].load_own_variables(state)
    x = rng.normal(size=(3, 8)).astype("float32")
    outputs, expected = (ops.convert_to_numpy(layer(x)) for layer in layers)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


def test_quantized_layer_refuses_lora_weights():
    layers = built(Dense, Dense)
    layers[0].enable_lora(2)
    for layer in layers:
        layer.quantize("int8")
    state = {}
    layers[0].save_own_variables(state)
    with pytest.raises(ValueError, match="Expected a layer with LoRA, or a layer that is not quantized"):
        layers[1].load_own_variables(state)
