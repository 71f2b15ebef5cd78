import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import keras_vit
from keras_vit.layers import AxialBlock
from tests.contract import check_layer, randomize


def build(seed=1):
    block = AxialBlock(num_heads=2, mlp_dim=12)
    block.build((None, None, None, 8))
    randomize(block, np.random.default_rng(seed), scale=0.3)
    return block


@pytest.mark.parametrize("arguments, num_seeds", [({}, 0), pytest.param({"dropout_rate": 0.1, "seed": 3}, 6, marks=pytest.mark.every_backend)])
def test_contract(arguments, num_seeds):
    arguments = {"num_heads": 2, "mlp_dim": 12, **arguments}
    layer = check_layer(
        AxialBlock, arguments, (2, 3, 4, 8), output_shape=(2, 3, 4, 8), num_weights=24, num_seeds=num_seeds
    )
    if num_seeds:
        blocks = layer.row_block, layer.column_block
        dropouts = [d for block in blocks for d in (block.dropout, block.mlp.dropout_1, block.mlp.dropout_2)]
        assert len({int(ops.convert_to_numpy(dropout.seed_generator.state)[0]) for dropout in dropouts}) == num_seeds


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))
def test_each_row_and_then_each_column_is_a_sequence_of_its_own(batch, rows, columns):
    block = build()
    x = np.random.default_rng(batch).normal(size=(batch, rows, columns, 8)).astype("float32")
    expected = np.empty_like(x)
    for row in range(rows):
        expected[:, row] = ops.convert_to_numpy(block.row_block(x[:, row]))
    for column in range(columns):
        expected[:, :, column] = ops.convert_to_numpy(block.column_block(expected[:, :, column]))
    np.testing.assert_allclose(ops.convert_to_numpy(block(x)), expected, rtol=1e-4, atol=1e-5)


def test_a_token_reaches_every_token_of_the_grid():
    block, x = build(), np.zeros((1, 3, 4, 8), "float32")
    x[0, 1, 2] = np.random.default_rng(0).normal(size=8)
    moved = x.copy()
    moved[0, 1, 2] *= -1
    first, second = (ops.convert_to_numpy(block(each)) for each in (x, moved))
    assert (np.abs(first - second).max(axis=-1) > 1e-3).all()


def test_cost_is_that_of_its_blocks_on_rows_and_columns():
    inputs = keras.Input((3, 4, 8))
    costs = keras_vit.profile(keras.Model(inputs, AxialBlock(2, 12)(inputs)))
    products = 12 * (4 * 8 * 8 + 2 * 8 * 12)
    assert costs.multiply_adds == 2 * products + 12 * 2 * 8 * (4 + 3)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_heads": 0, "mlp_dim": 12}, "`num_heads`. Expected an integer of at least 1. Received: 0"),
        ({"num_heads": 2, "mlp_dim": 0}, "`mlp_dim`. Expected an integer of at least 1. Received: 0"),
        ({"num_heads": 2, "mlp_dim": 12, "dropout_rate": 1}, r"`dropout_rate`. Expected a number in \[0, 1\)"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        AxialBlock(**arguments)
