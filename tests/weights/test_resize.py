import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.interpolation import POSITION_METHODS
from keras_vit.weights import resize
from tests.golden import GOLDEN_FOLDER

sides = st.integers(1, 20)


@given(old_rows=sides, old_columns=sides, rows=sides, columns=sides)
def test_resize_positions_is_scipys_zoom(old_rows, old_columns, rows, columns):
    grid = np.random.default_rng(0).normal(size=(old_rows, old_columns, 3)).astype("float32")
    zoom = (rows / old_rows, columns / old_columns, 1)
    # SciPy computes the new size as a rounded product; where that falls short the comparison has no meaning.
    expected = scipy.ndimage.zoom(grid, zoom, order=1)
    assert expected.shape == (rows, columns, 3)
    actual = resize.resize_positions(grid, rows, columns)
    assert actual.dtype == "float32"
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize(
    "name, prefix",
    [("tok_7x7_to_12x12", 1), ("tok_7x7_to_5x5", 1), ("gap_14x14_to_24x24", 0), ("tok_14x14_to_24x24", 1)],
)
def test_resize_positions_matches_the_official_code(name, prefix):
    golden = np.load(GOLDEN_FOLDER / "posembed_resize_official.npz")
    kind, old, _, new = name.split("_")
    old, new = int(old.split("x")[0]), int(new.split("x")[0])
    before, after = golden[f"{kind}_{old}x{old}"], golden[name]
    grid = before[0, prefix:].reshape(old, old, -1)
    np.testing.assert_allclose(
        resize.resize_positions(grid, new, new).reshape(new * new, -1), after[0, prefix:], atol=1e-5
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


def test_big_vision_resizes_as_the_official_code_does():
    golden = np.load(GOLDEN_FOLDER / "posembed_resize_bigvision.npz")
    actual = resize.resize_positions(golden["old"].reshape(7, 7, -1), 14, 14, "linear")
    np.testing.assert_allclose(actual.reshape(196, -1), golden["new_14x14"][0], atol=1e-5)


@pytest.mark.parametrize("rows, columns", [(12, 12), (4, 10)])
def test_antialiased_bicubic_is_timms(rows, columns):
    golden = np.load(GOLDEN_FOLDER / "posembed_resize_timm.npz")
    grid = golden["tok_7x7"][0, 1:].reshape(7, 7, -1)
    actual = resize.resize_positions(grid, rows, columns, "bicubic_antialias")
    expected = golden[f"tok_7x7_to_{rows}x{columns}"][0, 1:]
    np.testing.assert_allclose(actual.reshape(rows * columns, -1), expected, atol=1e-5)


# PyTorch itself resizes a single column wrongly where it antialiases.
@given(
    old_rows=sides,
    old_columns=st.integers(2, 20),
    rows=sides,
    columns=st.integers(2, 20),
    antialias=st.booleans(),
)
def test_bicubic_is_pytorchs(old_rows, old_columns, rows, columns, antialias):
    torch = pytest.importorskip("torch")
    grid = np.random.default_rng(0).normal(size=(old_rows, old_columns, 3))
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(grid).permute(2, 0, 1)[None], size=(rows, columns), mode="bicubic", antialias=antialias
    )
    actual = resize.resize_positions(grid, rows, columns, "bicubic_antialias" if antialias else "bicubic")
    np.testing.assert_allclose(actual, expected[0].permute(1, 2, 0).numpy(), atol=1e-6)


@pytest.mark.parametrize("method", POSITION_METHODS)
@given(old=sides, new=sides)
def test_each_method_keeps_constants_and_the_same_size(method, old, new):
    grid = np.full((old, old, 2), 0.7, "float32")
    np.testing.assert_allclose(resize.resize_positions(grid, new, old, method), 0.7, atol=1e-5)
    # As in DINO's code, whose ratio is another, callers keep a table of the same size.
    if method != "bicubic_offset":
        grid = np.random.default_rng(0).normal(size=(old, new, 2)).astype("float32")
        np.testing.assert_allclose(resize.resize_positions(grid, old, new, method), grid, atol=1e-6)


def enlarge(patch, size):
    """The image resize that patches are resized for: bilinear about pixel centres, as TensorFlow's and PyTorch's."""
    for axis, (old, new) in enumerate(zip(patch.shape[:2], size, strict=True)):
        places = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.minimum(places.astype(int), max(old - 2, 0))
        high = np.minimum(low + 1, old - 1)
        part = (places - low).reshape(-1, *(1,) * (patch.ndim - 1))
        rows = np.moveaxis(patch, axis, 0)
        patch = np.moveaxis(rows[low] * (1 - part) + rows[high] * part, 0, axis)
    return patch


@given(old=st.tuples(st.integers(1, 6), st.integers(1, 6)), grow=st.tuples(st.integers(0, 6), st.integers(0, 6)))
def test_a_larger_patch_embeds_enlarged_images_alike(old, grow):
    rng = np.random.default_rng(0)
    patch, kernel = rng.normal(size=(*old, 3)), rng.normal(size=(*old, 3, 4))
    new = tuple(o + g for o, g in zip(old, grow, strict=True))
    actual = np.einsum("hwc,hwcd->d", enlarge(patch, new), resize.resize_patches(kernel, new))
    np.testing.assert_allclose(actual, np.einsum("hwc,hwcd->d", patch, kernel), atol=1e-6)


def test_a_smaller_patch_is_the_least_squares_answer():
    kernel = np.random.default_rng(0).normal(size=(4, 4, 1, 1))
    # Column by column: what the resize makes of each basis image.
    basis = np.eye(16).reshape(16, 4, 4)
    shrunk = np.stack([enlarge(image, (2, 2)).reshape(-1) for image in basis])
    expected, *_ = np.linalg.lstsq(shrunk, kernel.reshape(-1), rcond=None)
    np.testing.assert_allclose(resize.resize_patches(kernel, (2, 2)).reshape(-1), expected, atol=1e-9)
