import numpy as np
import pytest

from keras_vit.inspection import plot_embedding_filters, plot_position_similarity

matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib")
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_filters_have_a_panel_a_component(channels, tmp_path):
    filters = RNG.normal(size=(9, 4, 6, channels))
    figure = plot_embedding_filters(filters, tmp_path / "filters.png")
    assert [axes.get_title() for axes in figure.axes] == [str(i) for i in range(1, 10)]
    assert "principal components" in figure.get_suptitle()
    shown = np.asarray(figure.axes[0].images[0].get_array())
    assert shown.shape == ((4, 6, 3) if channels >= 3 else (4, 6))
    # Zero is grey, and the largest number is at an end of the scale.
    part = filters[0, ..., :3] if channels >= 3 else filters[0, ..., 0]
    np.testing.assert_allclose(shown, 0.5 + 0.5 * part / np.abs(part).max(), atol=1e-6)
    assert matplotlib.image.imread(tmp_path / "filters.png").std() > 0.01


@pytest.mark.parametrize("grid", [(2, 3), (1, 1), (20, 4)])
def test_similarity_has_a_map_a_patch(grid, tmp_path):
    rows, columns = grid
    similarity = RNG.uniform(-1, 1, (*grid, *grid))
    axes, bar = plot_position_similarity(similarity, tmp_path / "positions.png").axes
    mosaic = np.ma.filled(axes.images[0].get_array(), np.nan)
    gap = max(1, round(max(grid) / 7))
    assert mosaic.shape == (rows * (rows + gap) - gap, columns * (columns + gap) - gap)
    top, left = (rows - 1) * (rows + gap), (columns - 1) * (columns + gap)
    np.testing.assert_allclose(mosaic[top:, left:], similarity[-1, -1], atol=1e-6)
    np.testing.assert_allclose(mosaic[:rows, :columns], similarity[0, 0], atol=1e-6)
    assert np.isnan(mosaic).sum() == mosaic.size - similarity.size
    assert axes.get_xlabel() == "column of the patch" and bar.get_ylabel() == "cosine similarity"
    assert matplotlib.image.imread(tmp_path / "positions.png").std() > 0.01


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match=r"`filters` of shape \(number, height, width, channels\)"):
        plot_embedding_filters(np.zeros((4, 4, 3)))
    with pytest.raises(ValueError, match=r"`similarity` of shape \(rows, columns, rows, columns\)"):
        plot_position_similarity(np.zeros((2, 3, 3, 2)))
