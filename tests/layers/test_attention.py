import keras
import numpy as np
import pytest
from keras import ops
from scipy.special import softmax

from keras_vit.layers import MultiHeadSelfAttention
from tests.contract import randomize
from tests.errors import refuses
from tests.tiny import assert_close

CASES = [{"num_heads": 4}, {"num_heads": 3}, {"head_dim": 7, "use_bias": False}, {"max_relative_distance": 2}]
CASES += [{"qk_norm": True, "layer_norm_epsilon": 0.5}]
ON_EVERY_BACKEND = [{"key_bias": False, "output_norm": True, "layer_norm_epsilon": 1e-3}]
ON_EVERY_BACKEND += [{"max_relative_distance": 20, "qk_norm": True}]


def layer_norm(x, gamma, beta, epsilon):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * gamma + beta


def reference(layer, x):
    """Attention from its definition, in float64: the outputs and the weights."""
    weights = {w.path.split("/", 1)[-1]: ops.convert_to_numpy(w).astype("float64") for w in layer.weights}
    width = weights["qkv/kernel"].shape[1] // 3

    def normed(x, name):
        return layer_norm(x, weights[f"{name}/gamma"], weights[f"{name}/beta"], layer.layer_norm_epsilon)

    def heads(i):
        part = slice(i * width, (i + 1) * width)
        bias = 0 if i == 1 and not layer.key_bias else weights.get("qkv/bias", np.zeros(3 * width))[part]
        projected = x.astype("float64") @ weights["qkv/kernel"][:, part] + bias
        return projected.reshape(*x.shape[:2], layer.num_heads, -1).transpose(0, 2, 1, 3)

    query, key, value = map(heads, range(3))
    if layer.qk_norm:
        query, key = normed(query, "query_norm"), normed(key, "key_norm")
    products = query @ key.swapaxes(2, 3)
    if (limit := layer.max_relative_distance) is not None:
        steps = np.subtract.outer(np.arange(x.shape[1]), np.arange(x.shape[1])).clip(-limit, limit)
        products += np.einsum("bhqc,qkc->bhqk", query, weights["relative_embeddings"][steps + limit])
    scores = softmax(products / np.sqrt(query.shape[-1]), axis=-1)
    joined = (scores @ value).transpose(0, 2, 1, 3).reshape(*x.shape[:2], width)
    joined = normed(joined, "norm") if layer.output_norm else joined
    return joined @ weights["out/kernel"] + weights["out/bias"], scores


def build(x, **arguments):
    layer = MultiHeadSelfAttention(**arguments)
    layer.build(x.shape)
    randomize(layer, np.random.default_rng(1), scale=0.5)
    return layer


@pytest.mark.parametrize(
    "arguments", [*CASES, *(pytest.param(case, marks=pytest.mark.every_backend) for case in ON_EVERY_BACKEND)]
)
def test_definition_on_both_paths(arguments):
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
    layer = build(x, **{"num_heads": 2, **arguments})
    expected, expected_scores = reference(layer, x)
    fused = ops.convert_to_numpy(layer(x))
    explicit, scores = map(ops.convert_to_numpy, layer(x, return_attention_scores=True))
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(explicit, expected, rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(fused, explicit, rtol=1e-5, atol=1e-5)


def test_token_of_size_n_counts_as_n_copies():
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    sizes = np.array([[2, 1, 3, 1, 1], [1, 1, 1, 1, 4]], "int32")
    layer = build(x, num_heads=2)
    y = ops.convert_to_numpy(layer(x, sizes))
    # A token's weight is the sum over its copies.
    z, scores, keys = map(ops.convert_to_numpy, layer(x, sizes, return_attention_scores=True, return_keys=True))
    np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-5)
    for i in range(2):
        first = np.cumsum(sizes[i]) - sizes[i]
        copies, weights = layer(np.repeat(x[i : i + 1], sizes[i], axis=1), return_attention_scores=True)
        np.testing.assert_allclose(z[i], ops.convert_to_numpy(copies)[0, first], rtol=1e-5, atol=1e-5)
        of_keys = np.add.reduceat(ops.convert_to_numpy(weights)[0][:, first], first, axis=-1)
        np.testing.assert_allclose(scores[i], of_keys, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(keys, ops.convert_to_numpy(layer.project(x)[1]).mean(axis=2), atol=1e-6)
    outputs = MultiHeadSelfAttention(2)(keras.Input((5, 8)), return_attention_scores=True, return_keys=True)
    assert [o.shape for o in outputs] == [(None, 5, 8), (None, 2, 5, 5), (None, 5, 4)]


@pytest.mark.parametrize("num_queries", [3, 9])
def test_num_queries_keeps_leading_queries(num_queries):
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    sizes = np.array([[2, 1, 3, 1, 1], [1, 1, 1, 1, 4]], "int32")
    layer = build(x, num_heads=2, max_relative_distance=2, qk_norm=True)
    options = {"return_attention_scores": True, "return_keys": True}
    y, scores, keys = map(ops.convert_to_numpy, layer(x, sizes, **options))
    few = layer(x, sizes, num_queries=num_queries, **options)
    assert_close(few, (y[:, :num_queries], scores[:, :, :num_queries], keys), rtol=1e-5, atol=1e-6)
    spec = layer(keras.Input((5, 8)), num_queries=num_queries, **options)
    assert [s.shape[1:] for s in spec] == [tuple(actual.shape[1:]) for actual in few]
    refuses("`num_queries`. Expected an integer of at least 1. Received: -1", layer, x, num_queries=-1)


@pytest.mark.parametrize("arguments", [{"qk_norm": True}, {"dtype": "mixed_bfloat16"}, {"dropout_rate": 0.5}])
def test_few_queries_equal_leading_queries(arguments):
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
    layer = build(x, num_heads=2, **arguments)
    expected, actual = (ops.convert_to_numpy(ops.cast(layer(x, **few), "float32")) for few in ({}, {"num_queries": 2}))
    np.testing.assert_allclose(actual, expected[:, :2], atol=0.05 if "dtype" in arguments else 1e-5)


def quantize(layer):
    layer.qkv.quantize("int8")


def triple(layer):
    call = layer.qkv.call
    layer.qkv.call = lambda tokens, **kwargs: call(tokens, **kwargs) * 3


def round_products(layer):
    layer.qkv.dtype_policy = "mixed_bfloat16"


@pytest.mark.parametrize("change", [quantize, triple, round_products])
def test_few_queries_use_a_changed_projection(change):
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
    layer = build(x, num_heads=2)
    before = ops.convert_to_numpy(layer(x))
    change(layer)
    expected, actual = (ops.convert_to_numpy(layer(x, **few)) for few in ({}, {"num_queries": 2}))
    np.testing.assert_allclose(actual, expected[:, :2], rtol=1e-5, atol=1e-5)
    assert np.abs(expected - before).max() > 1e-3


@pytest.mark.every_backend
@pytest.mark.parametrize("scores", [False, True])
def test_softmax_of_bfloat16_sums_in_float32(scores):
    """Sums of ones in bfloat16 would stop at 256."""
    length = 1000
    layer = MultiHeadSelfAttention(1, dtype="mixed_bfloat16")
    layer.build((None, length, 4))
    kernel, bias, out, out_bias = layer.get_weights()
    # Queries and keys are zero, so the weights are equal. Values and outputs equal the input.
    kernel[:, :8], kernel[:, 8:], out[:] = 0, np.eye(4), np.eye(4)
    layer.set_weights([kernel, bias, out, out_bias])
    x = np.ones((2, length, 4), "float32")
    y = layer(x, return_attention_scores=scores)
    y, *weights = y if scores else (y,)
    np.testing.assert_allclose(ops.convert_to_numpy(ops.cast(y, "float32")), x, rtol=2**-8)
    for each in weights:
        np.testing.assert_allclose(ops.convert_to_numpy(ops.cast(each, "float32")), 1 / length, rtol=2**-8)


def test_dropout_of_weights_keeps_the_expectation():
    """With equal scores and values of one, an output is the share of the weights that stays, rescaled."""
    tokens, rate = 64, 0.25
    layer = MultiHeadSelfAttention(1, head_dim=1, dropout_rate=rate, seed=np.int64(0))
    layer.build((None, tokens, 1))
    layer.set_weights([np.zeros((1, 3)), np.array([0.0, 0.0, 1.0]), np.ones((1, 1)), np.zeros(1)])
    x = np.zeros((40, tokens, 1), "float32")
    y = ops.convert_to_numpy(layer(x, training=True))
    deviation = np.sqrt(rate / (1 - rate) / tokens)
    assert abs(y.mean() - 1) < 5 * deviation / np.sqrt(y.size)
    assert y.std() == pytest.approx(deviation, rel=0.1)
    # The returned scores are the weights before the dropout.
    _, scores = layer(x, training=True, return_attention_scores=True)
    np.testing.assert_allclose(ops.convert_to_numpy(scores), 1 / tokens, rtol=1e-5)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), 1, rtol=1e-5)


def test_softmax_of_large_scores_stays_finite_in_float16():
    layer = MultiHeadSelfAttention(1, dtype="mixed_float16")
    layer.build((None, 5, 16))
    layer.set_weights([np.full(w.shape, 0.5) for w in layer.weights])
    x = np.random.default_rng(0).normal(scale=4, size=(2, 5, 16)).astype("float32")
    for y in (layer(x), *layer(x, return_attention_scores=True)):
        assert np.isfinite(ops.convert_to_numpy(ops.cast(y, "float32"))).all()


@pytest.mark.parametrize("training", [False, True])
def test_query_and_key_norms_may_stay_in_float32(training):
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
    layer = build(x, num_heads=2, qk_norm=True, dtype="mixed_bfloat16", max_relative_distance=2)
    layer.query_norm.dtype_policy = layer.key_norm.dtype_policy = "float32"
    y = layer(x, training=training)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert np.abs(ops.convert_to_numpy(ops.cast(y, "float32")) - reference(layer, x)[0]).mean() < 0.02


def test_unfitting_input_is_refused():
    with pytest.raises(ValueError, match="Expected at least as many channels as heads. Received: 4 channels, 8 heads."):
        MultiHeadSelfAttention(8)(np.zeros((1, 3, 4)))
    refuses("expected ndim=3, found ndim=4", MultiHeadSelfAttention(2), np.zeros((1, 3, 3, 4)))
