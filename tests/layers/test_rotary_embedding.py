import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import MultiHeadSelfAttention, RotaryEmbedding
from keras_vit.layers.rotary_embedding import KINDS, rotate
from tests.errors import refuses

RNG = np.random.default_rng(0)


def angle(kind, channel, head_dim, row, column, grid, own_grid):
    """The angle by which a channel of a head turns at one patch, from the definition."""
    layout, theta, normalized, columns_first = KINDS[kind]
    quarter = head_dim // 4
    axis, frequency = divmod(channel % (head_dim // 2) if layout == "halves" else channel // 2, quarter)
    axis = 1 - axis if columns_first else axis
    position = (row, column)[axis]
    if normalized:
        position = 2 * np.pi * (2 * (position + 0.5) / grid[axis] - 1)
    elif own_grid:
        position = position / grid[axis] * own_grid[axis]
    return position / theta ** (frequency / quarter)


@pytest.mark.parametrize("grid", [(3, 3), (2, 5)])
@pytest.mark.parametrize("kind, own_grid", [("dinov3", None), ("eva02", (16, 8)), ("eva02", None), ("axial", None)])
def test_definition(kind, own_grid, grid):
    layer = RotaryEmbedding(kind, head_dim=8, patch_size=4, grid_size=own_grid)
    found = ops.convert_to_numpy(layer(np.zeros((1, 4 * grid[0] + 1, 4 * grid[1], 3), "float32")))
    places = [(row, column) for row in range(grid[0]) for column in range(grid[1])]
    angles = [[angle(kind, channel, 8, *place, grid, own_grid) for channel in range(8)] for place in places]
    np.testing.assert_allclose(found, np.stack([np.cos(angles), np.sin(angles)], axis=1), atol=2e-6)
    again = RotaryEmbedding.from_config(layer.get_config())
    assert again.compute_output_shape((None, None, None, 3)) == (None, 2, 8)
    np.testing.assert_array_equal(ops.convert_to_numpy(again.angles(grid)), found)


@pytest.mark.parametrize("kind", KINDS)
def test_rotate_is_a_product_of_complex_numbers(kind):
    angles = RotaryEmbedding(kind, head_dim=8, patch_size=4).angles((2, 3))
    x = RNG.normal(size=(2, 8, 3, 8)).astype("float32")
    found = ops.convert_to_numpy(rotate(ops.convert_to_tensor(x), angles, KINDS[kind].layout))
    # The class token and a register.
    np.testing.assert_array_equal(found[:, :2], x[:, :2])
    first, second = (slice(0, 4), slice(4, 8)) if KINDS[kind].layout == "halves" else (slice(0, 8, 2), slice(1, 8, 2))
    cosines, sines = (ops.convert_to_numpy(angles)[:, None, i, first] for i in (0, 1))
    product = (x[:, 2:, :, first] + 1j * x[:, 2:, :, second]) * (cosines + 1j * sines)
    np.testing.assert_allclose(found[:, 2:, :, first], product.real, atol=1e-5)
    np.testing.assert_allclose(found[:, 2:, :, second], product.imag, atol=1e-5)


@pytest.mark.every_backend
def test_attention_rotates_queries_and_keys():
    layer = MultiHeadSelfAttention(1, key_bias=False, rotary_layout="pairs")
    x = RNG.normal(size=(1, 7, 8)).astype("float32")
    angles = RotaryEmbedding("eva02", head_dim=8, patch_size=4).angles((2, 3))
    _, scores = layer(x, rotary=angles, return_attention_scores=True)
    query, key, _ = (ops.convert_to_numpy(rotate(y, angles, "pairs")) for y in layer.project(ops.convert_to_tensor(x)))
    weights = np.exp(query[0, :, 0] @ key[0, :, 0].T / np.sqrt(8))
    np.testing.assert_allclose(ops.convert_to_numpy(scores)[0, 0], weights / weights.sum(-1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("mode", [None, "int8"])
def test_key_bias_is_ignored_without_key_bias(mode):
    layer = MultiHeadSelfAttention(2, key_bias=False, rotary_layout="pairs")
    x = RNG.normal(size=(1, 7, 16)).astype("float32")
    angles = RotaryEmbedding("eva02", head_dim=8, patch_size=4).angles((2, 3))
    layer.build(x.shape)
    if mode:
        layer.qkv.quantize(mode)
    before = ops.convert_to_numpy(layer(x, rotary=angles))
    layer.qkv.bias.assign(np.repeat(np.float32([0, 1, 0]), 16))
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x, rotary=angles)), before, atol=1e-5)


def test_rotary_without_layout_or_reverse_is_refused():
    x, angles = np.zeros((1, 2, 8), "float32"), np.zeros((1, 2, 8), "float32")
    message = "Received: rotary_layout='pairs', rotary of shape None"
    refuses(message, MultiHeadSelfAttention(1, rotary_layout="pairs"), x)
    refuses("Received: rotary_layout=None", MultiHeadSelfAttention(1), x, rotary=angles)


def test_angles_stay_exact_in_mixed_precision():
    layer = RotaryEmbedding("dinov3", head_dim=8, patch_size=4, dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(layer(np.zeros((1, 8, 8, 3), "float32")).dtype) == "float32"
