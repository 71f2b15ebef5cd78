import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_vit.layers import Patches, PatchMap
from tests.contract import check_layer


@pytest.mark.parametrize("patch_size, grid", [(4, (2, 3)), pytest.param((3, 5), (3, 2), marks=pytest.mark.every_backend)])
def test_contract(patch_size, grid):
    check_layer(
        PatchMap,
        {"patch_size": patch_size, "num_prefix_tokens": 2},
        [(3, 2 + grid[0] * grid[1], 8), (3, 9, 13, 3)],
        output_shape=(3, *grid, 8),
    )


@given(
    patch_size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    remainder=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    prefix=st.integers(0, 3),
)
def test_puts_each_patch_back_in_its_place(patch_size, grid, remainder, prefix):
    height, width = (g * p + r % p for g, p, r in zip(grid, patch_size, remainder, strict=True))
    images = np.random.default_rng(0).normal(size=(2, height, width, 2)).astype("float32")
    patches = ops.convert_to_numpy(Patches(patch_size)(images))
    tokens = np.concatenate([np.full((2, prefix, patches.shape[-1]), 99, "float32"), patches], axis=1)
    maps = ops.convert_to_numpy(PatchMap(patch_size, num_prefix_tokens=prefix)(tokens, images))
    assert maps.shape == (2, *grid, patches.shape[-1])
    for row in range(grid[0]):
        for column in range(grid[1]):
            top, left = row * patch_size[0], column * patch_size[1]
            cut = images[:, top : top + patch_size[0], left : left + patch_size[1]]
            np.testing.assert_array_equal(maps[:, row, column], cut.reshape(2, -1))


def test_any_size_at_run_time():
    images = keras.Input((None, None, 3))
    model = keras.Model(images, PatchMap(4)(Patches(4)(images), images))
    assert model.output_shape == (None, None, None, 48)
    for height, width in ((8, 12), (17, 9)):
        y = model.predict(np.zeros((2, height, width, 3)), verbose=0)
        assert y.shape == (2, height // 4, width // 4, 48)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"patch_size": 0}, "`patch_size`. Expected an integer of at least 1. Received: 0"),
        ({"patch_size": (1, 2, 3)}, r"`patch_size`. Expected an integer or \(height, width\). Received: "),
        ({"patch_size": 4, "num_prefix_tokens": -1}, "`num_prefix_tokens`. Expected an integer of at least 0."),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        PatchMap(**arguments)
