import numpy as np
import pytest

from keras_vit import inspection
from keras_vit.inspection import embedding_filters, plot_embedding_filters, plot_position_similarity
from tests.errors import refuses
from tests.inspection import reference

matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib")
RNG = np.random.default_rng(0)
POSITIONS = [("learned", {}), ("learned", {"num_registers": 2})]
POSITIONS += [("learned", {"distillation_token": True, "image_size": (8, 20)}), ("learned", {"pooling": "gap"})]
POSITIONS += [("learned2d", {"distillation_token": True, "image_size": (8, 20)})]
POSITIONS += [("sincos2d", {"num_registers": 2})]


def components_of(kernel, number):
    """Returns the principal components, by the covariance of the filters' pixels."""
    variances, vectors = np.linalg.eigh(np.cov(kernel.reshape(-1, kernel.shape[-1])))
    return vectors.T[np.argsort(-variances)[:number]].reshape(number, *kernel.shape[:-1])


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_embedding_filters_are_principal_components(channels):
    model, _ = reference.build(in_channels=channels, patch_size=(2, 4), hidden_dim=12)
    filters = embedding_filters(model, number=5)
    assert filters.shape == (5, 2, 4, channels)
    expected = components_of(reference.weights_of(model)["patch_embedding/kernel"], 5)
    for actual, wanted in zip(filters.reshape(5, -1), expected.reshape(5, -1), strict=True):
        np.testing.assert_allclose(np.linalg.norm(actual), 1, atol=1e-5)
        np.testing.assert_allclose(np.abs(actual @ wanted), 1, atol=1e-4)
        assert actual[np.abs(actual).argmax()] > 0
    limit = min(12, 8 * channels)
    assert len(embedding_filters(model)) == limit
    refuses(f"`number` of at most {limit}, the number of components", embedding_filters, model, number=limit + 1)


def test_embedding_filters_of_hybrid_are_root_filters():
    model, _ = reference.build(stages=(1,), width_factor=0.5, patch_size=2, image_size=32)
    kernel = reference.weights_of(model)["root_conv/kernel"]
    kernel = (kernel - kernel.mean(axis=(0, 1, 2))) / (kernel.std(axis=(0, 1, 2)) + 1e-5)
    filters = embedding_filters(model)
    assert filters.shape == (28, 7, 7, 3)
    similarity = np.abs(np.sum(filters[:3] * components_of(kernel, 3), axis=(1, 2, 3)))
    np.testing.assert_allclose(similarity, 1, atol=1e-3)


def similarity_of(vectors, rows, columns):
    """Returns the cosine similarity of all pairs of patches."""
    unit = [vector / np.linalg.norm(vector) for vector in vectors]
    return np.array([[a @ b for b in unit] for a in unit]).reshape(rows, columns, rows, columns)


def positions_of(model, method, rows, columns):
    """Returns the vectors of the patches, from the weights or the formula."""
    w = reference.weights_of(model)
    if method == "learned":
        return w["position_embedding/embeddings"][0, -rows * columns :]
    if method == "learned2d":
        of_rows, of_columns = (w[f"position_embedding/{side}_embeddings"] for side in ("row", "column"))
    else:
        angles = np.arange(max(rows, columns))[:, None] * 10_000.0 ** -np.linspace(0, 1, 3)
        of_rows = of_columns = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return [np.concatenate([of_columns[column], of_rows[row]]) for row in range(rows) for column in range(columns)]


@pytest.mark.parametrize("method, changes", POSITIONS)
def test_position_similarity_matches_definition(method, changes):
    model, _ = reference.build(position_embedding=method, **changes)
    rows, columns = (side // 4 for side in model.input_shape[1:3])
    expected = similarity_of(positions_of(model, method, rows, columns), rows, columns)
    actual = inspection.position_similarity(model)
    assert actual.dtype == "float32"
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.long
def test_position_similarity_of_published_vit_b16(real):
    model, _, expected = real
    similarity = inspection.position_similarity(model)
    np.testing.assert_allclose(
        similarity.reshape(196, 14, 14)[90], expected["position_similarity_row_90"], rtol=1e-3, atol=1e-6
    )


@pytest.mark.parametrize("channels", [2, 4])
def test_filters_plot_has_panel_per_component(channels, tmp_path):
    filters = RNG.normal(size=(9, 4, 6, channels))
    figure = plot_embedding_filters(filters, tmp_path / "filters.png")
    assert [axes.get_title() for axes in figure.axes] == [str(i) for i in range(1, 10)]
    assert "principal components" in figure.get_suptitle()
    shown = np.asarray(figure.axes[0].images[0].get_array())
    assert shown.shape == ((4, 6, 3) if channels >= 3 else (4, 6))
    # Zero is grey, and the number of largest size is black or white.
    part = filters[0, ..., :3] if channels >= 3 else filters[0, ..., 0]
    np.testing.assert_allclose(shown, 0.5 + 0.5 * part / np.abs(part).max(), atol=1e-6)
    assert matplotlib.image.imread(tmp_path / "filters.png").std() > 0.01


@pytest.mark.parametrize("grid", [(2, 3), (1, 1)])
def test_similarity_plot_has_map_per_patch(grid, tmp_path):
    rows, columns = grid
    similarity = RNG.uniform(-1, 1, (*grid, *grid))
    axes, _ = plot_position_similarity(similarity, tmp_path / "positions.png").axes
    mosaic = np.ma.filled(axes.images[0].get_array(), np.nan)
    np.testing.assert_allclose(mosaic[-rows:, -columns:], similarity[-1, -1], atol=1e-6)
    np.testing.assert_allclose(mosaic[:rows, :columns], similarity[0, 0], atol=1e-6)
    assert np.isnan(mosaic).sum() == mosaic.size - similarity.size
    assert matplotlib.image.imread(tmp_path / "positions.png").std() > 0.01
