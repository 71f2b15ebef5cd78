import numpy as np
import pytest

from keras_vit.inspection import attention_overlay, plot_attention_distance, plot_attention_maps, plot_attention_rollout
from tests.errors import refuses

matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib")
RNG = np.random.default_rng(0)
PANELS = [((2, 3), 1, None, "class token"), ((2, 3), 0, None, "mean of all patches"), ((2, 3), 3, 2, "token 2")]
PANELS += [((2, 3), 1, 6, "patch at row 1, column 2"), (None, 1, None, "class token")]
PANELS += [(2, 1, None, "class token")]


def written(path):
    """Returns the picture in a file, which must have more than one colour."""
    picture = matplotlib.image.imread(path)
    assert picture.std() > 0.01
    return picture


@pytest.mark.parametrize("channels", [1, 5])
def test_overlay_darkens_patches_of_low_attention(channels):
    images = np.full((2, 8, 12, channels), 200)
    attention = np.zeros((2, 2, 3))
    attention[0, 0, 0], attention[0, 1, 2], attention[1] = 0.4, 0.2, 0.1
    overlay = attention_overlay(images, attention)
    assert overlay.shape == (2, 8, 12, 3 if channels >= 3 else 1) and overlay.dtype == "uint8"
    assert overlay[0, 0, 0, 0] == 200 and overlay[0, -1, -1, 0] == 100 and overlay[0, 0, -1, 0] == 0
    np.testing.assert_array_equal(overlay[1], 200)


def test_rollout_plot_has_three_panels_per_image(tmp_path):
    images, attention = RNG.integers(0, 256, (2, 16, 24, 3)), RNG.uniform(size=(2, 4, 6))
    figure = plot_attention_rollout(images, attention, tmp_path / "rollout.png", titles=["cat", "d" * 50])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:4] == ["cat", "attention", "by patch, 4 x 6", "d" * 33 + "…"]
    shown = figure.axes[1].images[0].get_array()
    np.testing.assert_array_equal(shown, attention_overlay(images, attention)[0])
    np.testing.assert_allclose(figure.axes[5].images[0].get_array(), attention[1], atol=1e-6)
    written(tmp_path / "rollout.png")


@pytest.mark.parametrize("grid, prefix, query, title", PANELS)
def test_maps_plot_has_panel_per_head(grid, prefix, query, title, tmp_path):
    rows, columns = (2, 2) if grid == 2 else grid or (3, 3)
    attention = RNG.uniform(size=(5, *(prefix + rows * columns,) * 2))
    image = RNG.integers(0, 256, (16, 24, 3))
    path = tmp_path / "maps.png" if query == 6 else None
    figure = plot_attention_maps(image, attention, path, grid_size=grid, query=query)
    assert figure.get_suptitle() == f"Attention from the {title}"
    assert len(figure.axes) == 5
    looks = attention.mean(axis=1) if title.startswith("mean") else attention[:, query or 0]
    for head, axes in enumerate(figure.axes):
        expected = looks[head, prefix:].reshape(rows, columns)
        np.testing.assert_allclose(axes.images[1].get_array(), expected, atol=1e-6)
        assert axes.get_title() == f"head {head} (up to {expected.max():.2g})"
        if title.startswith("patch"):
            np.testing.assert_allclose(axes.lines[0].get_xydata(), [[2.5 * 8, 1.5 * 8]])
    if path:
        written(path)


def test_distance_plot_has_dot_per_head(tmp_path):
    distance = RNG.uniform(0, 100, (4, 3))
    (axes,) = plot_attention_distance(distance, tmp_path / "distance.png").axes
    *heads, mean = axes.lines
    for line, of_head in zip(heads, distance.T, strict=True):
        np.testing.assert_allclose(line.get_xydata(), np.c_[range(4), of_head], rtol=1e-6)
    np.testing.assert_allclose(mean.get_ydata(), distance.mean(axis=1), rtol=1e-6)
    written(tmp_path / "distance.png")


def test_attention_plots_refuse_invalid_arguments():
    images, attention = np.zeros((2, 8, 8, 3)), np.zeros((2, 2, 2))
    refuses(r"`attention` of shape \(2, rows, columns\)", attention_overlay, images, attention[:1])
    refuses("2 `titles`, one for each image. Received: 1", plot_attention_rollout, images, attention, titles=["one"])
    refuses("Expected a .png file", plot_attention_rollout, images, attention, "rollout.pdf")
    for size, options, message in (
        ((2, 5, 4), {}, r"\(num_heads, num_tokens, num_tokens\)"),
        ((2, 5, 5), {"grid_size": (2, 3)}, r"at most 5 patches. Received: grid_size=\(2, 3\)"),
        # Without `grid_size`, the patches must form a square.
        ((2, 7, 7), {}, "`grid_size`, .* Received: grid_size=None for 7 tokens"),
        ((2, 5, 5), {"query": 5}, "one of 5 tokens. Received: query=5"),
    ):
        refuses(message, plot_attention_maps, images[0], np.zeros(size), **options)
