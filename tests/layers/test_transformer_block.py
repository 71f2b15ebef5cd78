import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import TransformerBlock
from tests.contract import randomize
from tests.layers.test_token_merging import layer_norm

TOKENS = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")


def build(**arguments):
    block = TransformerBlock(**{"num_heads": 2, "mlp_dim": 12, **arguments})
    block.build(TOKENS.shape)
    randomize(block, np.random.default_rng(1), scale=0.3)
    return block


@pytest.mark.parametrize("num_outputs", [1, 9])
def test_num_outputs_keeps_leading_tokens_of_all(num_outputs):
    block = build(layer_scale_init=0.5, qk_norm=True, max_relative_distance=3)
    expected = ops.convert_to_numpy(block(TOKENS))[:, :num_outputs]
    assert block(keras.KerasTensor(TOKENS.shape), num_outputs=num_outputs).shape == expected.shape
    found = ops.convert_to_numpy(block(TOKENS, num_outputs=num_outputs))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    y, scores = block(TOKENS, return_attention_scores=True, num_outputs=num_outputs)
    np.testing.assert_allclose(ops.convert_to_numpy(y), expected, rtol=1e-5, atol=1e-5)
    _, full_scores = block(TOKENS, return_attention_scores=True)
    np.testing.assert_allclose(ops.convert_to_numpy(scores), ops.convert_to_numpy(full_scores), atol=1e-6)


@pytest.mark.parametrize("layer_scale_init, epsilon", [(None, 1e-6), (0.5, 0.1)])
def test_definition(layer_scale_init, epsilon):
    """The residual stream, equations 2 and 3, around an attention and an MLP that have tests of their own."""
    block = build(layer_scale_init=layer_scale_init, layer_norm_epsilon=epsilon)
    scale_1, scale_2 = (
        1 if scale is None else scale.get_weights()[0] for scale in (block.layer_scale_1, block.layer_scale_2)
    )
    middle = TOKENS + scale_1 * ops.convert_to_numpy(block.attention(layer_norm(TOKENS, block.norm_1)))
    expected = middle + scale_2 * ops.convert_to_numpy(block.mlp(layer_norm(middle, block.norm_2)))
    np.testing.assert_allclose(ops.convert_to_numpy(block(TOKENS)), expected, rtol=1e-5, atol=1e-5)


def test_scores_equal_those_of_attention():
    block = build()
    y, scores = block(TOKENS, return_attention_scores=True)
    _, expected = block.attention(layer_norm(TOKENS, block.norm_1), return_attention_scores=True)
    np.testing.assert_allclose(ops.convert_to_numpy(scores), ops.convert_to_numpy(expected), atol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(y), ops.convert_to_numpy(block(TOKENS)), rtol=1e-5, atol=1e-5)
    outputs = block(keras.Input((5, 8)), return_attention_scores=True)
    assert [y.shape for y in outputs] == [(None, 5, 8), (None, 2, 5, 5)]


def test_drop_path_drops_branches_independently():
    """Branches that add 1 and 10 show which of the two stayed."""
    block = TransformerBlock(1, 4, drop_path_rate=0.5, seed=0)
    block.build((None, 2, 3))
    for layer, value in ((block.attention.out, 1), (block.mlp.dense_2, 10)):
        kernel, bias = layer.get_weights()
        layer.set_weights([np.zeros_like(kernel), np.full_like(bias, value)])
    y = ops.convert_to_numpy(block(np.zeros((400, 2, 3), "float32"), training=True))
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1, :1], y.shape))
    values, counts = np.unique(y[:, 0, 0], return_counts=True)
    np.testing.assert_array_equal(values, [0, 2, 20, 22])
    # All four combinations, each within five standard deviations of a quarter: two draws, not one.
    assert np.abs(counts - 100).max() < 5 * np.sqrt(400 * 0.25 * 0.75)


def test_blocks_of_neighbouring_seeds_are_independent():
    blocks = [TransformerBlock(2, 12, drop_path_rate=0.5, seed=i) for i in range(12)]
    paths = [path for block in blocks for path in (block.drop_path_1, block.drop_path_2)]
    ones = np.ones((500, 1, 1), "float32")
    steps = [[ops.convert_to_numpy(path(ones, training=True))[:, 0, 0] > 0 for path in paths] for _ in range(2)]
    kept = np.sum(steps[0], axis=0)
    # 24 fair coins: a variance of 6, whose own deviation over 500 images is 0.37.
    assert abs(kept.var() - 6) < 2
    # Neither the same numbers, nor those of another path a step later.
    first, second = np.array(steps)
    agreement = (first[:, None] == second[None]).mean(axis=-1)
    assert agreement.min() > 0.35 and agreement.max() < 0.65


def test_all_seeds_differ():
    block = TransformerBlock(2, 12, 0.1, 0.1, 0.1, seed=3)
    dropouts = [block.attention.dropout, block.dropout, block.drop_path_1, block.drop_path_2]
    dropouts += [block.mlp.dropout_1, block.mlp.dropout_2]
    assert len({layer.seed for layer in dropouts} - {None}) == 6
    again = TransformerBlock.from_config(block.get_config())
    y, z = (ops.convert_to_numpy(layer.drop_path_1(TOKENS, training=True)) for layer in (block, again))
    np.testing.assert_array_equal(y, z)


def test_bad_num_outputs_is_refused():
    with pytest.raises(ValueError, match="`num_outputs`. Expected an integer of at least 1. Received: 0"):
        build()(TOKENS, num_outputs=0)
    with pytest.raises(ValueError, match="`num_outputs` to be at most 0, the number of prefix tokens.*num_outputs=1"):
        build(token_merging=2, num_outputs=1)
    with pytest.raises(ValueError, match="`num_outputs` to be at most 1, the number of prefix tokens.*num_outputs=2"):
        build(token_merging=2, num_prefix_tokens=1)(TOKENS, num_outputs=2)


def test_num_outputs_of_prefix_skips_merging():
    block = build(token_merging=2, num_prefix_tokens=2)
    sizes = np.array([[1, 1, 3, 1, 2]] * 3, "int32")
    tokens, _ = block(TOKENS, sizes)
    prefix = block(TOKENS, sizes, num_outputs=2)
    np.testing.assert_allclose(*map(ops.convert_to_numpy, (prefix, tokens[:, :2])), rtol=1e-5, atol=1e-5)
    assert block(keras.KerasTensor(TOKENS.shape), num_outputs=2).shape == prefix.shape
