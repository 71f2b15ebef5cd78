import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import Dense, cpu


@pytest.fixture(params=[False, True], ids=["linear", "convolution"])
def by_convolution(request, monkeypatch):
    """As on a processor of each make; on TensorFlow and JAX that is the same."""
    monkeypatch.setattr(cpu, "min_rows", lambda: {"float32": 1, "bfloat16": 1} if request.param else {})
    monkeypatch.setattr(cpu, "MIN_OUTPUTS", 1)
    return request.param


on_torch = pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch alone has another way")


@on_torch
@pytest.mark.parametrize(
    "processor, expected",
    [
        ("GenuineIntel avx512_bf16", {}),
        ("AuthenticAMD avx2", {"float32": 64}),
        ("AuthenticAMD avx512_bf16", {"float32": 64, "bfloat16": 1024}),
        (None, {}),
    ],
)
def test_processors_that_take_convolutions(processor, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "CPU_INFO", tmp_path / "cpuinfo")
    if processor:
        (tmp_path / "cpuinfo").write_text(processor)
    assert cpu.min_rows.__wrapped__() == expected


@on_torch
def test_few_rows_or_outputs_traced_ones_and_no_tricks_are_no_convolutions(monkeypatch):
    import torch

    called = []
    monkeypatch.setattr(cpu, "_convolution", lambda original=cpu._convolution: called.append(1) or original())
    monkeypatch.setattr(cpu, "min_rows", lambda: {"float32": 65})
    monkeypatch.setattr(cpu, "MIN_OUTPUTS", 390)
    for rows, units, expected in ((97, 4, 0), (64, 7, 0), (65, 6, 1)):
        layer = Dense(units)
        layer(np.ones((rows, 8), "float32"))
        assert len(called) == expected
    layer.trainable = False
    with torch.no_grad():
        torch.jit.trace(lambda x: layer(x), torch.ones(65, 8), check_trace=False)
        monkeypatch.setattr(cpu, "ENABLED", False)
        layer(torch.ones(65, 8))
    assert len(called) == 1


@on_torch
def test_values_are_the_same_where_no_gradient_is_asked_for(by_convolution, monkeypatch):
    import torch

    layer = Dense(3, bias_initializer="normal")
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    convolution, applied = cpu._convolution(), []
    layer.build(x.shape)
    expected = layer(x)
    monkeypatch.setattr(convolution, "apply", applied.append)
    with torch.no_grad():
        outputs = layer(x)
    assert not applied and not outputs.requires_grad and expected.requires_grad
    np.testing.assert_array_equal(outputs, expected.detach())


@on_torch
def test_every_derivative_is_the_products(by_convolution):
    import torch
    from torch.func import grad, hessian, jacfwd, jacrev, vmap

    layer = Dense(3)
    layer.build((None, 4))
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(5, 4)).astype("float32"))
    weights = [torch.tensor(rng.normal(size=size).astype("float32")) for size in ((4, 3), (3,))]

    def loss(product, x, kernel, bias):
        return (torch.tanh(product(x, kernel, bias)) ** 2).sum()

    def linear(x, kernel, bias):
        return torch.nn.functional.linear(x, kernel.T, bias)

    for transform in (jacfwd, jacrev, hessian, grad):
        for argument in range(3):
            actual, expected = (
                transform(lambda *args, p=product: loss(p, *args), argnums=argument)(x, *weights)
                for product in (cpu._linear_on_torch, linear)
            )
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    # Of each row by itself, of which the rest are not the rows of one matrix.
    strided = torch.stack([x, 2 * x], dim=2)
    actual, expected = (
        vmap(grad(lambda x, p=product: loss(p, x, *weights)), in_dims=2)(strided)
        for product in (cpu._linear_on_torch, linear)
    )
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@on_torch
@pytest.mark.parametrize("frozen", ["x", "kernel"])
def test_what_no_gradient_needs_is_not_kept(by_convolution, frozen):
    import torch

    x, kernel = torch.ones(5, 4, requires_grad=frozen != "x"), torch.ones(4, 3, requires_grad=frozen != "kernel")
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        y = cpu._linear_on_torch(x, kernel, torch.ones(3))
    y.sum().backward()
    assert sorted(map(tuple, kept)) in ([(4, 3)] if frozen == "kernel" else [(5, 4)], [(3, 4)])


@on_torch
def test_gradients_under_autocast_and_in_bfloat16(by_convolution):
    import torch

    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=size).astype("float32") for size in ((70, 8), (8, 6), (6,))]
    expected = [
        np.ones((70, 6)) @ arrays[1].T,
        arrays[0].T @ np.ones((70, 6)),
        np.full(6, 70),
    ]
    for dtype, autocast in ((torch.float32, True), (torch.bfloat16, False)):
        tensors = [torch.tensor(a, dtype=dtype, requires_grad=True) for a in arrays]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            y = cpu._linear_on_torch(*tensors)
        y.sum().backward()
        for tensor, value in zip(tensors, expected, strict=True):
            assert tensor.grad.dtype == dtype
            np.testing.assert_allclose(tensor.grad.float().numpy(), value, rtol=0.02, atol=0.3)


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


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.filterwarnings("error")
def test_an_explicit_jit_compile_is_obeyed(dtype):
    model = keras.Sequential([keras.Input((8,)), Dense(6, dtype=dtype)])
    model.compile("sgd", "mse", jit_compile=True)
    assert model.jit_compile is True


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


def test_lora_comes_back_from_a_file(tmp_path):
    model = keras.Sequential([keras.Input((8,)), Dense(6)])
    layer = model.layers[0]
    layer.enable_lora(2, lora_alpha=5)
    model.set_weights([np.random.default_rng(0).normal(size=w.shape) for w in model.get_weights()])
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert loaded.layers[0].lora_alpha == 5
    for value, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_a_quantized_layer_without_lora_refuses_weights_with_it():
    layers = [Dense(6), Dense(6)]
    for layer in layers:
        layer.build((None, 8))
    layers[0].enable_lora(2)
    for layer in layers:
        layer.quantize("int8")
    state = {}
    layers[0].save_own_variables(state)
    with pytest.raises(ValueError, match="Expected a layer with LoRA, or not quantized"):
        layers[1].load_own_variables(state)


def test_lora_acts_and_trains(by_convolution):
    layer = Dense(6)
    layer.build((None, 5, 8))
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    kernel = ops.convert_to_numpy(layer.kernel)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), x @ kernel, rtol=1e-5, atol=1e-5)
