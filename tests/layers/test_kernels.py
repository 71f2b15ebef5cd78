import re
from collections import Counter

import keras
import numpy as np
import pytest
import scipy.special
from keras import ops

import keras_vit
from keras_vit.inspection.gradients import gradients
from keras_vit.layers import kernels
from keras_vit.layers.kernels import attend, dense
from tests.memory import needs_linux, peak
from tests.tiny import assert_close


@pytest.mark.every_backend
@pytest.mark.parametrize("biased", [True, False])
def test_dense_equals_definition_and_promotes_dtypes(biased):
    random = np.random.default_rng(0)
    x, kernel, bias = (random.normal(size=shape).astype("float32") for shape in ((2, 5, 8), (8, 6), (6,)))
    expected = x @ kernel + (bias if biased else 0)
    for dtype, tolerance in {"float32": 1e-6, "bfloat16": 0.02}.items():
        y = dense(ops.cast(x, dtype), kernel, ops.convert_to_tensor(bias) if biased else None)
        assert keras.backend.standardize_dtype(y.dtype) == "float32"
        np.testing.assert_allclose(ops.convert_to_numpy(y), expected, rtol=tolerance, atol=10 * tolerance)


def test_dense_moves_its_input_to_the_device_of_its_weights():
    import torch

    outputs = dense(torch.zeros(2, 5, 8, device="meta"), torch.zeros(8, 6))
    assert outputs.device == ops.zeros(1).device and outputs.shape == (2, 5, 6)


@pytest.mark.every_backend
@pytest.mark.parametrize("fused, training", [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("length, bias_shape", [(6, (1, 2, 1)), (7, None), (7, (3, 1, 1)), (7, (3, 2, 0))])
def test_attend_equals_definition(length, bias_shape, fused, training, monkeypatch):
    """Seven tokens are attended to in slices. A bias has one number for each key, or for each query and key."""
    random = np.random.default_rng(0)
    query, key, value = random.normal(size=(3, 3, length, 2, 4)).astype("float32")
    bias = None
    if bias_shape is not None:
        images, heads, queries = bias_shape
        bias = random.normal(size=(images, heads, queries or length, length)).astype("float32")
    scores = np.einsum("bqhd,bkhd->bhqk", query, key) / 2 + (0 if bias is None else bias)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), value)
    query, key, value = map(ops.convert_to_tensor, (query, key, value))
    monkeypatch.setattr(kernels, "has_fused_kernel", lambda: fused)
    monkeypatch.setattr(kernels, "_LONG", 6)
    monkeypatch.setattr(kernels, "_SLICE", 3)
    bias = None if bias is None else ops.convert_to_tensor(bias)
    actual = attend(query, key, value, bias, training)
    np.testing.assert_allclose(ops.convert_to_numpy(actual), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.every_backend
@pytest.mark.parametrize("training", [True, False])
def test_attend_in_bfloat16(training, monkeypatch):
    monkeypatch.setattr(kernels, "has_fused_kernel", lambda: False)
    random = np.random.default_rng(0)
    inputs = [ops.cast(random.normal(size=(3, 7, 2, 4)), "bfloat16") for _ in range(3)]
    actual = attend(*inputs, None, training)
    assert actual.dtype == inputs[0].dtype and tuple(actual.shape) == (3, 7, 2, 4)
    expected = attend(*(ops.cast(x, "float32") for x in inputs), None)
    actual, expected = (ops.convert_to_numpy(ops.cast(x, "float32")) for x in (actual, expected))
    np.testing.assert_allclose(actual, expected, rtol=0.02, atol=0.02)


@pytest.mark.every_backend
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 0.1), ("float16", 0.01)])
@pytest.mark.parametrize(
    "queries, training, biased, fused",
    [(2, True, True, False), (7, False, False, False), (7, True, True, True), (7, True, False, True)],
)
def test_attend_gradients_equal_softmax_gradients(dtype, tolerance, queries, training, biased, fused, monkeypatch):
    if fused and keras.backend.backend() == "tensorflow":
        pytest.skip("TensorFlow has no fused kernel")
    monkeypatch.setattr(kernels, "has_fused_kernel", lambda: fused)
    random = np.random.default_rng(0)
    shapes = (3, queries, 2, 4), (3, 7, 2, 4), (3, 7, 2, 4), (1, 2, queries, 7)
    # Scores of up to 30, whose exponential would be infinite in float16.
    values = [3 * random.normal(size=shape) for shape in shapes[: 4 if biased else 3]]

    def attention(query, key, value, bias=0.0):
        scores = ops.einsum("bqhd,bkhd->bhqk", query, key) / 2 + bias
        return ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores), value)

    def own(query, key, value, bias=None):
        return attend(query, key, value, bias, training)

    def slopes(function, dtype):
        def total(*inputs):
            return ops.sum(ops.cast(function(*inputs), "float32") * weights)

        return gradients(total, *(ops.cast(value, dtype) for value in values))

    weights = ops.cast(random.normal(size=(3, queries, 2, 4)), "float32")
    for actual, expected in zip(slopes(own, dtype), slopes(attention, "float32"), strict=True):
        expected = ops.convert_to_numpy(expected)
        actual = ops.convert_to_numpy(ops.cast(actual, "float32"))
        np.testing.assert_allclose(actual, expected, atol=tolerance * np.abs(expected).max())


def test_heads_join_without_a_copy():
    qkv = ops.convert_to_tensor(np.random.default_rng(0).normal(size=(2, 7, 3, 4, 8)).astype("float32"))
    parts = ops.unstack(qkv, 3, axis=2)
    joined = attend(*parts, None)
    assert joined.is_contiguous()
    apart = attend(*(x.contiguous() for x in parts), None)
    np.testing.assert_allclose(joined.cpu(), apart.cpu(), atol=1e-6)


@pytest.mark.backends("jax")
def test_dense_multiplies_one_row_per_token():
    import jax

    lowered = jax.jit(dense).lower(np.zeros((2, 3, 4)), np.zeros((4, 5)), np.zeros(5)).as_text()
    assert re.search(r"dot_general.*tensor<6x4xf32>, tensor<4x5xf32>", lowered)


@pytest.mark.backends("jax")
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_block_copies_nothing_around_fused_attention(dtype, monkeypatch):
    """The gradient for odd lengths pads queries, keys, values and the output, and reverts each pad."""
    import jax

    @jax.jit
    def attention_marker(query, key, value, bias=None, mask=None):
        return query + key + value

    monkeypatch.setattr(kernels, "has_fused_kernel", lambda: True)
    monkeypatch.setattr(ops, "dot_product_attention", attention_marker)
    block = keras_vit.layers.TransformerBlock(num_heads=2, mlp_dim=16, activation="gelu", dtype=dtype)
    block.build((2, 17, 8))

    def forward(values, tokens):
        return block.stateless_call(values, [], tokens)[0]

    def loss(values, tokens):
        return ops.sum(ops.cast(forward(values, tokens), "float32") ** 2)

    values = [variable.value for variable in block.trainable_variables]
    for length, pads in ((17, 7), (16, 0)):
        tokens = np.zeros((2, length, 8), "float32")
        assert _operations(jax.jit(forward).lower(values, tokens)) == {"attention_marker": 1}
        in_gradient = _operations(jax.jit(jax.grad(loss)).lower(values, tokens))
        # The products for the gradients of the four kernels are transposed.
        assert in_gradient == {"attention_marker": 2, "transpose": 4} | ({"pad": pads} if pads else {})


def _operations(lowered):
    """Counts calls of `attention_marker`, pads and transposes in a program."""
    bodies = dict(re.findall(r"func\.func \w+ @(\w+)(.*?)\n  }", lowered.as_text(), re.DOTALL))

    def count(name):
        found = Counter(re.findall(r"stablehlo\.(pad|transpose)", bodies[name]))
        for called in re.findall(r"call @(\w+)", bodies[name]):
            found += count(called)
        return found + Counter({"attention_marker": name.startswith("attention_marker")})

    return dict(count("main"))


@pytest.mark.every_backend
@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-6), ("bfloat16", 0.004), ("float16", 5e-4)])
def test_activate_computes_exact_gelu_in_one_rounding(dtype, tolerance):
    x = ops.cast(np.linspace(-8, 8, 1001), dtype)
    exact = ops.convert_to_numpy(ops.cast(x, "float32")).astype("float64")
    exact = 0.5 * exact * (1 + scipy.special.erf(exact / np.sqrt(2)))
    actual = kernels.activate(x, keras.activations.gelu)
    assert actual.dtype == x.dtype
    np.testing.assert_allclose(ops.convert_to_numpy(ops.cast(actual, "float32")), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.every_backend
def test_long_sequence_trains_as_in_one_piece(monkeypatch):
    """Slices of queries are recomputed for the gradients."""
    monkeypatch.setattr(kernels, "has_fused_kernel", lambda: False)
    x, y = np.random.default_rng(0).normal(size=(2, 2, 16, 8)).astype("float32")
    trained = []
    for long in (100, 4):
        monkeypatch.setattr(kernels, "_LONG", long)
        monkeypatch.setattr(kernels, "_SLICE", 7)
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((16, 8)), keras_vit.layers.MultiHeadSelfAttention(2)])
        model.compile(keras.optimizers.SGD(1.0), "mse")
        model.fit(x, y, epochs=2, verbose=0)
        trained.append(model.get_weights())
    assert_close(*trained, rtol=1e-4, atol=1e-6)


@pytest.mark.backends("tensorflow", "jax")
@needs_linux
def test_long_sequence_needs_less_memory_than_its_scores(monkeypatch):
    """Training with all slices at once would keep several copies of the scores."""
    length = 4096
    scores = 4 * length**2
    # A few slices are in use at once.
    monkeypatch.setattr(kernels, "_SLICE", length // 32)
    model = keras.Sequential([keras.Input((length, 8)), keras_vit.layers.MultiHeadSelfAttention(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = np.random.default_rng(0).normal(size=(2, 1, length, 8)).astype("float32")
    # The first step compiles the model, so leave its memory out.
    model.train_on_batch(x, y)
    assert peak(lambda: model.train_on_batch(x, y)) * 2**20 < 0.75 * scores
