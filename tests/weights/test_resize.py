import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.weights import resize

sides = st.integers(1, 20)


@given(old_rows=sides, old_columns=sides, rows=sides, columns=sides)
def test_resize_linear_is_scipys_zoom(old_rows, old_columns, rows, columns):
    grid = np.random.default_rng(0).normal(size=(old_rows, old_columns, 3)).astype("float32")
    zoom = (rows / old_rows, columns / old_columns, 1)
    # SciPy computes the new size as a rounded product; where that falls short the comparison has no meaning.
    expected = scipy.ndimage.zoom(grid, zoom, order=1)
    assert expected.shape == (rows, columns, 3)
    actual = resize.resize_linear(grid, rows, columns)
    assert actual.dtype == "float32"
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize(
    "name, prefix",
    [("tok_7x7_to_12x12", 1), ("tok_7x7_to_5x5", 1), ("gap_14x14_to_24x24", 0), ("tok_14x14_to_24x24", 1)],
)
def test_resize_linear_matches_the_official_code(shared, name, prefix):
    golden = np.load(shared / "golden" / "posembed_resize_official.npz")
    kind, old, _, new = name.split("_")
    old, new = int(old.split("x")[0]), int(new.split("x")[0])
    before, after = golden[f"{kind}_{old}x{old}"], golden[name]
    grid = before[0, prefix:].reshape(old, old, -1)
    np.testing.assert_allclose(
        resize.resize_linear(grid, new, new).reshape(new * new, -1), after[0, prefix:], atol=1e-5
    )


@given(old=st.integers(1, 6), new=st.integers(1, 12))
def test_adapted_channels_keep_what_a_constant_image_gives(old, new):
    kernel = np.random.default_rng(old).normal(size=(2, 3, old, 5)).astype("float32")
    actual = resize.adapt_channels(kernel, new)
    assert actual.shape == (2, 3, new, 5) and actual.dtype == "float32"
    if new == old or new % old == 0 or new == 1:
        np.testing.assert_allclose(actual.sum(axis=2), kernel.sum(axis=2), atol=1e-5)


def test_adapted_channels_are_summed_or_tiled_in_order():
    kernel = np.array([1.0, 2.0, 3.0], "float32").reshape(1, 1, 3, 1)
    assert resize.adapt_channels(kernel, 1).ravel().tolist() == [6.0]
    np.testing.assert_allclose(resize.adapt_channels(kernel, 5).ravel(), np.array([1, 2, 3, 1, 2]) * 3 / 5, rtol=1e-6)
    assert resize.adapt_channels(kernel, 3) is kernel
