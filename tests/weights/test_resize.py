import math

import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.images.interpolation import POSITION_METHODS
from keras_vit.weights import resize
from tests.golden import GOLDEN_FOLDER

sides = st.integers(1, 20)
PUBLISHED = [
    ("official", "tok_7x7", "tok_7x7_to_12x12", 1, "linear"),
    ("official", "gap_14x14", "gap_14x14_to_24x24", 0, "linear"),
    ("bigvision", "old", "new_14x14", 0, "linear"),
    ("timm", "tok_7x7", "tok_7x7_to_12x12", 1, "bicubic_antialias"),
    ("timm", "tok_7x7", "tok_7x7_to_4x10", 1, "bicubic_antialias"),
]


@given(old_rows=sides, old_columns=sides, rows=sides, columns=sides)
def test_linear_resize_equals_scipy_zoom(old_rows, old_columns, rows, columns):
    grid = np.random.default_rng(0).normal(size=(old_rows, old_columns, 3)).astype("float32")
    zoom = (rows / old_rows, columns / old_columns, 1)
    expected = scipy.ndimage.zoom(grid, zoom, order=1)
    assert expected.shape == (rows, columns, 3)
    actual = resize.resize_positions(grid, rows, columns)
    assert actual.dtype == "float32"
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize("file, old, new, prefix, method", PUBLISHED)
def test_resized_positions_are_those_of_published_code(file, old, new, prefix, method):
    golden = np.load(GOLDEN_FOLDER / f"posembed_resize_{file}.npz")
    before, after = (golden[name].reshape(-1, golden[name].shape[-1])[prefix:] for name in (old, new))
    side = math.isqrt(len(before))
    rows, columns = map(int, new.split("_")[-1].split("x"))
    actual = resize.resize_positions(before.reshape(side, side, -1), rows, columns, method)
    np.testing.assert_allclose(actual.reshape(rows * columns, -1), after, atol=1e-5)


def test_channels_are_summed_or_tiled_in_order():
    kernel = np.array([1.0, 2.0, 3.0], "float32").reshape(1, 1, 3, 1)
    assert resize.adapt_channels(kernel, 1).ravel().tolist() == [6.0]
    np.testing.assert_allclose(resize.adapt_channels(kernel, 5).ravel(), np.array([1, 2, 3, 1, 2]) * 3 / 5, rtol=1e-6)
    assert resize.adapt_channels(kernel, 3) is kernel
    assert resize.adapt_channels(kernel, 5).dtype == "float32"


# PyTorch resizes a single column wrongly if it antialiases.
@given(old_rows=sides, old_columns=st.integers(2, 20), rows=sides, columns=st.integers(2, 20), antialias=st.booleans())
def test_bicubic_resize_equals_pytorch(old_rows, old_columns, rows, columns, antialias):
    torch = pytest.importorskip("torch")
    grid = np.random.default_rng(0).normal(size=(old_rows, old_columns, 3))
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(grid).permute(2, 0, 1)[None], size=(rows, columns), mode="bicubic", antialias=antialias
    )
    actual = resize.resize_positions(grid, rows, columns, "bicubic_antialias" if antialias else "bicubic")
    np.testing.assert_allclose(actual, expected[0].permute(1, 2, 0).numpy(), atol=1e-6)


@pytest.mark.parametrize("method", POSITION_METHODS)
@given(old=sides, new=sides)
def test_resize_keeps_constants_and_equal_size(method, old, new):
    grid = np.full((old, old, 2), 0.7, "float32")
    np.testing.assert_allclose(resize.resize_positions(grid, new, old, method), 0.7, atol=1e-5)
    # DINO's ratio differs, so "bicubic_offset" changes tables of the same size.
    if method != "bicubic_offset":
        grid = np.random.default_rng(0).normal(size=(old, new, 2)).astype("float32")
        np.testing.assert_allclose(resize.resize_positions(grid, old, new, method), grid, atol=1e-6)


def enlarge(patch, size):
    """Resizes bilinearly with aligned pixel centres, as TensorFlow and PyTorch do."""
    for axis, (old, new) in enumerate(zip(patch.shape[:2], size, strict=True)):
        places = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.minimum(places.astype(int), max(old - 2, 0))
        high = np.minimum(low + 1, old - 1)
        part = (places - low).reshape(-1, *(1,) * (patch.ndim - 1))
        rows = np.moveaxis(patch, axis, 0)
        patch = np.moveaxis(rows[low] * (1 - part) + rows[high] * part, 0, axis)
    return patch


@given(old=st.tuples(st.integers(1, 6), st.integers(1, 6)), grow=st.tuples(st.integers(0, 6), st.integers(0, 6)))
def test_larger_patch_embeds_enlarged_images_alike(old, grow):
    rng = np.random.default_rng(0)
    patch, kernel = rng.normal(size=(*old, 3)), rng.normal(size=(*old, 3, 4))
    new = tuple(o + g for o, g in zip(old, grow, strict=True))
    actual = np.einsum("hwc,hwcd->d", enlarge(patch, new), resize.resize_patches(kernel, new))
    np.testing.assert_allclose(actual, np.einsum("hwc,hwcd->d", patch, kernel), atol=1e-6)


def test_smaller_patch_is_least_squares_solution():
    kernel = np.random.default_rng(0).normal(size=(4, 4, 1, 1))
    # Each column of the matrix is one resized basis image.
    shrunk = np.stack([enlarge(image, (2, 2)).reshape(-1) for image in np.eye(16).reshape(16, 4, 4)])
    expected, *_ = np.linalg.lstsq(shrunk, kernel.reshape(-1), rcond=None)
    np.testing.assert_allclose(resize.resize_patches(kernel, (2, 2)).reshape(-1), expected, atol=1e-9)
