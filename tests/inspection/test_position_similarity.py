import numpy as np
import pytest
from keras import ops

from keras_vit.inspection import position_similarity
from tests.inspection import reference


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
