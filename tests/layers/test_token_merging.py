import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_vit.layers import TransformerBlock
from keras_vit.layers.token_merging import match, merge, num_merged
from tests.contract import randomize

RNG = np.random.default_rng(0)


def numpy(x):
    return ops.convert_to_numpy(x)


def reference(tokens, sizes, keys, r, prefix):
    """Section 3 of the paper for one image: lists of tokens, a loop over edges."""
    patches = list(range(prefix, len(tokens)))
    targets, sources = patches[0::2], patches[1::2]
    cosine = lambda i, j: keys[i] @ keys[j] / np.linalg.norm(keys[i]) / np.linalg.norm(keys[j])  # noqa: E731
    # Each token of one half draws one edge, to the token of the other half that is most like it; the r best stay.
    edges = [(i, max(targets, key=lambda j: cosine(i, j))) for i in sources]
    merged = dict(sorted(edges, key=lambda edge: -cosine(*edge))[: min(r, len(patches) // 2)])
    groups = [[i] for i in (*range(prefix), *(i for i in sources if i not in merged))]
    groups += [[j, *(i for i in merged if merged[i] == j)] for j in targets]
    means = [np.average(tokens[group], axis=0, weights=sizes[group]) for group in groups]
    return np.array(means), np.array([sizes[group].sum() for group in groups])


@given(
    batch=st.integers(1, 3),
    prefix=st.integers(0, 3),
    num_patches=st.integers(2, 13),
    r=st.integers(1, 8),
    seed=st.integers(0, 2**32 - 1),
)
def test_merge_equals_the_paper(batch, prefix, num_patches, r, seed):
    rng = np.random.default_rng(seed)
    length = prefix + num_patches
    tokens, keys = rng.normal(size=(2, batch, length, 4)).astype("float32")
    sizes = rng.integers(1, 9, (batch, length)).astype("int32")
    count = num_merged(length, r, prefix)
    assert count == min(r, num_patches // 2)
    places = match(ops.convert_to_tensor(keys), count, prefix)
    merged, new_sizes = merge(ops.convert_to_tensor(tokens), ops.convert_to_tensor(sizes), places, length - count)
    for i in range(batch):
        expected, expected_sizes = reference(tokens[i], sizes[i], keys[i].astype("float64"), r, prefix)
        np.testing.assert_allclose(numpy(merged)[i], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(numpy(new_sizes)[i], expected_sizes)


@pytest.mark.every_backend
def test_equal_tokens_merge_in_their_order():
    places = numpy(match(np.ones((1, 7, 2)), 2, num_prefix_tokens=1))
    # Patches 1 and 3 join patch 0, patch 5 stays.
    np.testing.assert_array_equal(places, [[0, 2, 2, 3, 2, 4, 1]])


def test_zero_keys_do_not_divide_by_zero():
    assert np.isfinite(numpy(match(np.zeros((1, 6, 2)), 3))).all()


def layer_norm(x, norm):
    gamma, beta = (numpy(w).astype("float64") for w in norm.weights)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + norm.epsilon) * gamma + beta


def dense(x, layer):
    return x @ numpy(layer.kernel).astype("float64") + numpy(layer.bias)


def reference_block(block, tokens, sizes):
    """One block on one image: proportional attention (equation 1), merging, MLP."""
    heads, width = block.attention.num_heads, block.attention.key_dim
    qkv = dense(layer_norm(tokens, block.norm_1), block.attention.qkv).reshape(-1, 3, heads, width)
    query, key, value = qkv.transpose(1, 2, 0, 3)
    weights = np.exp(query @ key.transpose(0, 2, 1) / np.sqrt(width) + np.log(sizes))
    attended = (weights / weights.sum(-1, keepdims=True)) @ value
    tokens = tokens + dense(attended.transpose(1, 0, 2).reshape(len(tokens), -1), block.attention.out)
    if block.token_merging:
        tokens, sizes = reference(tokens, sizes, key.mean(axis=0), block.token_merging, block.num_prefix_tokens)
    hidden = np.maximum(dense(layer_norm(tokens, block.norm_2), block.mlp.dense_1), 0)
    return tokens + dense(hidden, block.mlp.dense_2), sizes


@pytest.mark.parametrize(
    "prefix, remat", [(0, False), (2, False), pytest.param(1, True, marks=pytest.mark.every_backend)]
)
def test_blocks_with_merging_equal_numpy(prefix, remat):
    """The numbers of patches are 11, 8, 5, 3 and 3. The last block merges none."""
    x = RNG.normal(size=(2, prefix + 11, 8)).astype("float32")
    expected = [(tokens, np.ones(len(tokens), int)) for tokens in x.astype("float64")]
    tokens, sizes = ops.convert_to_tensor(x), None
    for r in (3, 3, 3, 0):
        block = TransformerBlock(
            2, 12, activation="relu", token_merging=r, num_prefix_tokens=prefix, remat=remat, name=f"merges_{r}"
        )
        block.build(x.shape)
        randomize(block, RNG, scale=0.3)
        expected = [reference_block(block, *one) for one in expected]
        outputs = block(tokens, sizes, training=True)
        tokens, sizes = outputs if r else (outputs, sizes)
    assert tokens.shape == (2, prefix + 3, 8)
    np.testing.assert_allclose(numpy(tokens), [one for one, _ in expected], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(numpy(sizes), [one for _, one in expected])
    assert keras.backend.standardize_dtype(sizes.dtype) == "int32"


@pytest.mark.backends("tensorflow", "torch")
def test_single_patch_is_not_merged():
    block = TransformerBlock(2, 12, token_merging=2, num_prefix_tokens=2)
    tokens, sizes = block(RNG.normal(size=(2, 3, 8)).astype("float32"))
    assert tokens.shape == (2, 3, 8)
    np.testing.assert_array_equal(numpy(sizes), np.ones((2, 3)))
    # The length is unknown in the traced model.
    inputs = keras.Input((None, 8))
    _, sizes = keras.Model(inputs, list(block(inputs))).predict(np.ones((2, 3, 8), "float32"), verbose=0)
    np.testing.assert_array_equal(sizes, np.ones((2, 3)))


def test_empty_batch_is_merged():
    outputs = TransformerBlock(2, 12, token_merging=2, num_prefix_tokens=1)(np.ones((0, 9, 8), "float32"))
    assert [tuple(y.shape) for y in outputs] == [(0, 7, 8), (0, 7)]


def test_shapes_and_scores():
    block = TransformerBlock(2, 12, token_merging=6, num_prefix_tokens=1)
    outputs = block(keras.Input((9, 8)), return_attention_scores=True)
    assert [y.shape for y in outputs] == [(None, 5, 8), (None, 5), (None, 2, 9, 9)]
    assert [y.dtype for y in outputs] == ["float32", "int32", "float32"]
    tokens, sizes, scores = block(RNG.normal(size=(2, 9, 8)).astype("float32"), return_attention_scores=True)
    assert [tuple(y.shape) for y in (tokens, sizes, scores)] == [(2, 5, 8), (2, 5), (2, 2, 9, 9)]
    np.testing.assert_array_equal(numpy(sizes).sum(axis=1), 9)
    assert [y.shape for y in block(keras.Input((None, 8)))] == [(None, None, 8), (None, None)]
