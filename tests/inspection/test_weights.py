import numpy as np
import pytest
from keras import ops

from keras_vit.inspection import (
    embedding_filters,
    plot_embedding_filters,
    plot_position_similarity,
    position_similarity,
)
from tests.inspection import reference

matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib")
RNG = np.random.default_rng(0)


def components_of(kernel, number):
    """By the covariance of the filters' pixels."""
    filters = kernel.reshape(-1, kernel.shape[-1])
    variances, vectors = np.linalg.eigh(np.cov(filters))
    return vectors.T[np.argsort(-variances)[:number]].reshape(number, *kernel.shape[:-1])


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_filters_are_the_principal_components(channels):
    model, _ = reference.build(in_channels=channels, patch_size=(2, 4), hidden_dim=12)
    filters = embedding_filters(model, number=5)
    assert filters.shape == (5, 2, 4, channels)
    expected = components_of(reference.weights_of(model)["patch_embedding/kernel"], 5)
    for actual, wanted in zip(filters.reshape(5, -1), expected.reshape(5, -1), strict=True):
        np.testing.assert_allclose(np.linalg.norm(actual), 1, atol=1e-5)
        np.testing.assert_allclose(np.abs(actual @ wanted), 1, atol=1e-4)
        assert actual[np.abs(actual).argmax()] > 0


def test_filters_of_a_hybrid_are_those_that_see_the_pixels():
    model, _ = reference.build(stages=(1,), width_factor=0.5, patch_size=2, image_size=32)
    kernel = reference.weights_of(model)["root_conv/kernel"]
    kernel = (kernel - kernel.mean(axis=(0, 1, 2))) / (kernel.std(axis=(0, 1, 2)) + 1e-5)
    filters = embedding_filters(model)
    assert filters.shape == (28, 7, 7, 3)
    similarity = np.abs(np.sum(filters[:3] * components_of(kernel, 3), axis=(1, 2, 3)))
    np.testing.assert_allclose(similarity, 1, atol=1e-3)


def test_no_more_than_there_are():
    model, _ = reference.build()
    assert len(embedding_filters(model)) == 12
    with pytest.raises(ValueError, match="`number` of at most 12, the number of components. Received: 13"):
        embedding_filters(model, number=13)


def test_filters_of_the_real_model_are_smooth(real):
    filters = embedding_filters(real[0])
    assert filters.shape == (28, 16, 16, 3)
    # A basis of smooth functions, as in the paper: a pixel is close to the next one.
    steps = [np.mean(np.diff(f, axis=0) ** 2) / (2 * f.var()) for f in filters]
    assert np.median(steps) < 0.5


def similarity_of(vectors, rows, columns):
    """By loops over the pairs of patches."""
    result = np.zeros((rows * columns, rows * columns))
    for i, a in enumerate(vectors):
        for j, b in enumerate(vectors):
            result[i, j] = a @ b / (np.sqrt(a @ a) * np.sqrt(b @ b))
    return result.reshape(rows, columns, rows, columns)


def positions_of(model, method, rows, columns):
    """The patches' vectors, from the weights or the formula."""
    w = reference.weights_of(model)
    if method == "learned":
        return w["position_embedding/embeddings"][0, -rows * columns :]
    vectors = []
    for row in range(rows):
        for column in range(columns):
            if method == "learned2d":
                of_column = w["position_embedding/column_embeddings"][column]
                of_row = w["position_embedding/row_embeddings"][row]
            else:
                frequencies = 10_000.0 ** -np.linspace(0, 1, 3)
                of_column, of_row = (
                    np.concatenate([np.sin(at * frequencies), np.cos(at * frequencies)]) for at in (column, row)
                )
            vectors.append(np.concatenate([of_column, of_row]))
    return vectors


@pytest.mark.parametrize("method", ["learned", "learned2d", "sincos2d"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"num_registers": 2}, {"distillation_token": True, "image_size": (8, 20)}, {"pooling": "gap"}],
    ids=["plain", "registers", "distilled, non-square", "gap"],
)
def test_similarity_is_that_of_the_definition(method, changes):
    model, _ = reference.build(position_embedding=method, **changes)
    rows, columns = (side // 4 for side in model.input_shape[1:3])
    expected = similarity_of(positions_of(model, method, rows, columns), rows, columns)
    actual = position_similarity(model)
    assert actual.dtype == "float32"
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_mixed_precision_does_not_round():
    import keras

    model, _ = reference.build()
    expected = position_similarity(model)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        mixed, _ = reference.build()
    finally:
        keras.config.set_dtype_policy(before)
    mixed.set_weights([ops.convert_to_numpy(w) for w in model.weights])
    np.testing.assert_allclose(position_similarity(mixed), expected, atol=1e-6)


def test_positions_of_the_real_model(real):
    model, _, expected = real
    similarity = position_similarity(model)
    np.testing.assert_allclose(
        similarity.reshape(196, 14, 14)[90], expected["position_similarity_row_90"], rtol=1e-3, atol=1e-6
    )
    right = []
    for row in range(1, 13):
        for column in range(1, 13):
            others = similarity[row, column].copy()
            others[row, column] = -2
            nearest = {divmod(int(i), 14) for i in np.argsort(others, axis=None)[-4:]}
            neighbours = {(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)}
            right.append(len(nearest & neighbours) / 4)
    assert np.mean(right) >= 0.95


@pytest.mark.parametrize("method", ["relative", "none"])
def test_models_without_a_vector_a_patch_are_refused(method):
    model, _ = reference.build(position_embedding=method)
    with pytest.raises(ValueError, match="Expected a model with position embeddings"):
        position_similarity(model)


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


def test_arrays_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"`filters` of shape \(number, height, width, channels\)"):
        plot_embedding_filters(np.zeros((4, 4, 3)))
    with pytest.raises(ValueError, match=r"`similarity` of shape \(rows, columns, rows, columns\)"):
        plot_position_similarity(np.zeros((2, 3, 3, 2)))
