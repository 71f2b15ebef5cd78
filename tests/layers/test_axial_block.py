import keras
import numpy as np
import pytest
from hypothesis import given
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


@pytest.mark.every_backend
def test_contract():
    arguments = {"num_heads": 2, "mlp_dim": 12, "dropout_rate": 0.1, "seed": 3}
    layer = check_layer(AxialBlock, arguments, (2, 3, 4, 8), output_shape=(2, 3, 4, 8), num_weights=24, num_seeds=6)
    blocks = layer.row_block, layer.column_block
    dropouts = [d for block in blocks for d in (block.dropout, block.mlp.dropout_1, block.mlp.dropout_2)]
    assert len({int(ops.convert_to_numpy(dropout.seed_generator.state)[0]) for dropout in dropouts}) == 6


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))
def test_rows_then_columns_are_separate_sequences(batch, rows, columns):
    block = build()
    x = np.random.default_rng(batch).normal(size=(batch, rows, columns, 8)).astype("float32")
    expected = np.empty_like(x)
    for row in range(rows):
        expected[:, row] = ops.convert_to_numpy(block.row_block(x[:, row]))
    for column in range(columns):
        expected[:, :, column] = ops.convert_to_numpy(block.column_block(expected[:, :, column]))
    np.testing.assert_allclose(ops.convert_to_numpy(block(x)), expected, rtol=1e-4, atol=1e-5)


def test_profile_counts_blocks_on_rows_and_columns():
    inputs = keras.Input((3, 4, 8))
    costs = keras_vit.profile(keras.Model(inputs, AxialBlock(2, 12)(inputs)))
    products = 12 * (4 * 8 * 8 + 2 * 8 * 12)
    assert costs.multiply_adds == 2 * products + 12 * 2 * 8 * (4 + 3)
