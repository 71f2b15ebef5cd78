import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_vit.layers import PositionEmbedding
from tests.contract import randomize
from tests.errors import refuses

GRIDS = st.tuples(st.integers(2, 7), st.integers(2, 7))


def zoom(grid, rows, columns):
    """The official code's resize of a (rows, columns, channels) grid of embeddings."""
    return scipy.ndimage.zoom(grid, (rows / grid.shape[0], columns / grid.shape[1], 1), order=1)


def sincos2d(rows, columns, hidden_dim):
    """Sines and cosines of the column, then of the row, place by place, (rows * columns, hidden_dim)."""
    omega = 1 / 10_000 ** (np.arange(hidden_dim // 4) / (hidden_dim // 4 - 1))
    return np.array(
        [
            np.concatenate([np.sin(x * omega), np.cos(x * omega), np.sin(y * omega), np.cos(y * omega)])
            for y in range(rows)
            for x in range(columns)
        ]
    )


def positions(layer, grid, hidden_dim=8):
    """Returns what a layer adds to the tokens of images with this grid, (tokens, hidden_dim)."""
    tokens = np.zeros((1, layer.num_prefix_tokens + grid[0] * grid[1], hidden_dim), "float32")
    if layer.patch_size is None:
        return ops.convert_to_numpy(layer(tokens))[0]
    images = np.zeros((1, grid[0] * layer.patch_size[0], grid[1] * layer.patch_size[1], 3), "float32")
    return ops.convert_to_numpy(layer(tokens, images))[0]


def build(*args, hidden_dim=8, **arguments):
    layer = PositionEmbedding(*args, **arguments)
    length = layer.num_prefix_tokens + layer.grid_size[0] * layer.grid_size[1]
    layer.build((None, length, hidden_dim))
    randomize(layer, np.random.default_rng(1), scale=1.0)
    return layer


def test_learned_without_images_adds_its_table():
    layer = build((2, 3), num_prefix_tokens=1)
    table = ops.convert_to_numpy(layer.embeddings)
    assert table.shape == (1, 7, 8)
    x = np.random.default_rng(0).normal(size=(4, 7, 8)).astype("float32")
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), x + table, atol=1e-6)


@pytest.mark.parametrize("num_positions", [0, 1, 3])
@pytest.mark.parametrize("grid", [(2, 3), (4, 5)])
def test_learned_prefix(num_positions, grid):
    """The prefix's rows come first in the table and are not resized; the rest of the prefix gets none."""
    layer = build((2, 3), patch_size=4, num_prefix_tokens=3, num_prefix_positions=num_positions)
    table = ops.convert_to_numpy(layer.embeddings)[0]
    assert table.shape == (num_positions + 6, 8)
    y = positions(layer, grid)
    np.testing.assert_allclose(y[:num_positions], table[:num_positions], atol=1e-6)
    np.testing.assert_array_equal(y[num_positions:3], 0)
    np.testing.assert_allclose(y[3:], zoom(table[num_positions:].reshape(2, 3, 8), *grid).reshape(-1, 8), atol=1e-5)


@given(old=GRIDS, new=GRIDS)
def test_learned_is_resized_as_by_the_official_code(old, new):
    layer = build(old, patch_size=(2, 3), hidden_dim=4)
    expected = zoom(ops.convert_to_numpy(layer.embeddings).reshape(*old, 4), *new).reshape(-1, 4)
    np.testing.assert_allclose(positions(layer, new, hidden_dim=4), expected, atol=1e-5)


@pytest.mark.parametrize("num_positions", [0, 2])
@pytest.mark.parametrize("grid", [(2, 3), (4, 2)])
def test_learned2d_by_definition(num_positions, grid):
    """One vector a column for the first half of the channels, one a row for the second."""
    layer = build((2, 3), "learned2d", patch_size=4, num_prefix_tokens=2, num_prefix_positions=num_positions)
    columns, rows = map(ops.convert_to_numpy, (layer.column_embeddings, layer.row_embeddings))
    assert (columns.shape, rows.shape) == ((3, 4), (2, 4))
    rows = zoom(rows[:, None], grid[0], 1)[:, 0]
    columns = zoom(columns[:, None], grid[1], 1)[:, 0]
    expected = [np.concatenate([columns[x], rows[y]]) for y in range(grid[0]) for x in range(grid[1])]
    y = positions(layer, grid)
    np.testing.assert_allclose(y[2:], expected, atol=1e-5)
    if num_positions:
        np.testing.assert_allclose(y[:2], ops.convert_to_numpy(layer.prefix_embeddings)[0], atol=1e-6)
    else:
        assert layer.prefix_embeddings is None
        np.testing.assert_array_equal(y[:2], 0)


@given(stored=GRIDS, grid=GRIDS, quarter=st.integers(2, 8), prefix=st.integers(0, 2))
def test_sincos2d_by_definition(stored, grid, quarter, prefix):
    """Computed for the input's own grid, whatever grid the layer was made for; nothing for the prefix."""
    layer = build(stored, "sincos2d", patch_size=4, num_prefix_tokens=prefix, hidden_dim=4 * quarter)
    y = positions(layer, grid, hidden_dim=4 * quarter)
    np.testing.assert_array_equal(y[:prefix], 0)
    np.testing.assert_allclose(y[prefix:], sincos2d(*grid, 4 * quarter), atol=1e-5)


def test_sincos2d_of_the_least_width():
    y = positions(build((2, 3), "sincos2d", hidden_dim=4), (2, 3), hidden_dim=4)
    expected = [[np.sin(x), np.cos(x), np.sin(y), np.cos(y)] for y in range(2) for x in range(3)]
    np.testing.assert_allclose(y, expected, atol=1e-6)


def test_grids_of_one_place():
    layer = build((3, 3), patch_size=4)
    table = ops.convert_to_numpy(layer.embeddings)[0]
    np.testing.assert_allclose(positions(layer, (1, 1)), table[:1], atol=1e-6)
    layer = build((1, 1), patch_size=4)
    table = ops.convert_to_numpy(layer.embeddings)[0]
    np.testing.assert_allclose(positions(layer, (3, 2)), np.repeat(table, 6, axis=0), atol=1e-6)


@pytest.mark.every_backend
def test_grid_is_inferred_from_the_first_input():
    layer = PositionEmbedding(num_prefix_tokens=1)
    assert layer(np.zeros((2, 10, 8), "float32")).shape == (2, 10, 8)
    assert PositionEmbedding.from_config(layer.get_config()).grid_size == layer.grid_size == (3, 3)
    layer = PositionEmbedding(patch_size=4)
    layer(np.zeros((1, 6, 8), "float32"), np.zeros((1, 8, 12, 3), "float32"))
    assert layer.grid_size == (2, 3) and layer.embeddings.shape == (1, 6, 8)
    for shape in ((1, 6, 8), (1, 0, 8)):
        refuses(r"Write PositionEmbedding\(\(rows, columns\)", PositionEmbedding(), np.zeros(shape))
    refuses("Expected `grid_size`", PositionEmbedding(patch_size=4).build, (None, None, 8), (None, None, None, 3))


def test_unfitting_input_is_refused():
    layer, expected = PositionEmbedding((2, 3), num_prefix_tokens=1), "Expected 1 prefix tokens and 2 x 3 patches"
    for tokens in (6, 1):  # One token would be broadcast.
        refuses(f"{expected}. Received: {tokens} tokens", layer, np.zeros((1, tokens, 8)))
    refuses("a multiple of 4 channels .* Received: 6", PositionEmbedding((2, 3), "sincos2d"), np.zeros((1, 6, 6)))
    refuses("a multiple of 2 channels .* Received: 5", PositionEmbedding((2, 3), "learned2d"), np.zeros((1, 6, 5)))
    images = np.zeros((1, 8, 12, 3))
    refuses("`patch_size` if .* Received: patch_size=None", PositionEmbedding((2, 3)), np.zeros((1, 6, 8)), images)
