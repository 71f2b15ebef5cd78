import itertools

import numpy as np
import pytest
from keras import ops

from keras_vit.models.coatnet.relative_attention import RelativeAttention
from tests.contract import randomize


def built(channels, **options):
    layer = RelativeAttention(**{"num_heads": 2, "head_dim": 3, "units": 5, "grid_size": (3, 2), **options})
    layer.build((None, *layer.grid_size, channels))
    randomize(layer, np.random.default_rng(0), scale=0.5)
    return layer


def weights_of(layer):
    return {w.path.split("/", 1)[1]: ops.convert_to_numpy(w).astype("float64") for w in layer.weights}


def bias_by_loop(table, rows, columns):
    """The paper's definition: the bias of offset (i - i', j - j') for each pair of places."""
    table = table.reshape(2 * rows - 1, 2 * columns - 1, -1)
    places = list(itertools.product(range(rows), range(columns)))
    bias = np.zeros((table.shape[-1], len(places), len(places)))
    for (q, (i, j)), (k, (m, n)) in itertools.product(enumerate(places), enumerate(places)):
        bias[:, q, k] = table[i - m + rows - 1, j - n + columns - 1]
    return bias


def test_definition():
    layer = built(4)
    w = weights_of(layer)
    x = np.random.default_rng(1).normal(size=(2, 3, 2, 4)).astype("float32")
    qkv = x.reshape(2, 6, 4) @ w["qkv/kernel"] + w["qkv/bias"]
    query, key, value = np.moveaxis(qkv.reshape(2, 6, 2, 3, 3), (3, 2), (0, 2))
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(3) + bias_by_loop(w["position_table"], 3, 2)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    expected = np.swapaxes(scores @ value, 1, 2).reshape(2, 3, 2, 6) @ w["out/kernel"] + w["out/bias"]
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, rtol=1e-4, atol=1e-5)
    y, found = layer(x, return_attention_scores=True)
    np.testing.assert_allclose(ops.convert_to_numpy(y), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ops.convert_to_numpy(found), scores, rtol=1e-4, atol=1e-6)


def test_biases_of_the_mlp():
    layer = built(4, position_mlp_dim=6)
    w = weights_of(layer)
    rows, columns = np.meshgrid([-2, -1, 0, 1, 2], [-1, 0, 1], indexing="ij")
    offsets = np.stack([np.sign(x) * np.log(1 + np.abs(x)) for x in (rows, columns)], axis=-1)
    hidden = np.maximum(offsets @ w["position_kernel_1"] + w["position_bias_1"], 0)
    table = hidden @ w["position_kernel_2"] + w["position_bias_2"]
    found = ops.convert_to_numpy(layer.position_bias((3, 2)))[0]
    np.testing.assert_allclose(found, bias_by_loop(table, 3, 2), rtol=1e-5, atol=1e-6)


def bilinear(table, new):
    """Bilinear interpolation at pixel centres, borders repeated, written pixel by pixel."""
    found = np.zeros((*new, table.shape[-1]))
    for i, j in itertools.product(*map(range, new)):
        y, x = ((n + 0.5) * old / size - 0.5 for n, old, size in zip((i, j), table.shape, new, strict=False))
        top, left = int(np.floor(y)), int(np.floor(x))
        for a, b in itertools.product((0, 1), (0, 1)):
            share = abs(1 - a - (y - top)) * abs(1 - b - (x - left))
            row, column = np.clip(top + a, 0, len(table) - 1), np.clip(left + b, 0, table.shape[1] - 1)
            found[i, j] += share * table[row, column]
    return found


@pytest.mark.parametrize("grid_size", [(5, 4), (2, 3), (3, 3)])
def test_table_is_resized_for_another_map_size(grid_size):
    layer = built(4)
    new = [2 * side - 1 for side in grid_size]
    table = bilinear(weights_of(layer)["position_table"].reshape(5, 3, 2), new)
    found = ops.convert_to_numpy(layer.position_bias(grid_size))[0]
    np.testing.assert_allclose(found, bias_by_loop(table, *grid_size), rtol=1e-4, atol=1e-5)
    assert layer(np.ones((1, *grid_size, 4))).shape == (1, *grid_size, 5)


def test_geometric_resize_keeps_middle_and_ends():
    layer = built(4, interpolation="geometric")
    old = weights_of(layer)["position_table"].reshape(5, 3, 2)
    found = ops.convert_to_numpy(layer._table((6, 7)))
    assert found.shape == (11, 13, 2)
    np.testing.assert_allclose(found[5, 6], old[2, 1], rtol=1e-4)
    np.testing.assert_allclose(found[[0, -1]][:, [0, -1]], old[[0, -1]][:, [0, -1]], rtol=1e-3)
