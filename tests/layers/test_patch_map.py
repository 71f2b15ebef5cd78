import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_vit.layers import Patches, PatchMap


@given(
    patch_size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    remainder=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    prefix=st.integers(0, 3),
)
def test_patch_map_puts_patches_in_their_places(patch_size, grid, remainder, prefix):
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
