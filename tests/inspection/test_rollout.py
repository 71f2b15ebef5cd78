import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.inspection import attention_maps, attention_rollout, gradient_rollout
from keras_vit.inspection.rollout import discard_smallest
from tests.inspection import reference

FUSE = {"mean": np.mean, "max": np.max, "min": np.min}


def rollout_of(maps, fusion="mean"):
    """The whole matrix of the first image, by loops: head by head fused, plus identity, normalised, multiplied."""
    product = None
    for of_block in maps:
        attention = FUSE[fusion](of_block[0], axis=0) + np.eye(of_block.shape[-1])
        attention = np.stack([row / row.sum() for row in attention])
        product = attention if product is None else np.dot(attention, product)
    return product


@pytest.mark.parametrize("changes", reference.MODELS.values(), ids=reference.MODELS)
def test_rollout_is_that_of_the_definition(changes):
    model, images = reference.build(**changes)
    matrix = rollout_of(reference.run(model, images)[1])
    height, width, _ = model.input_shape[1:]
    rows, columns = height // 4, width // 4
    prefix = len(matrix) - rows * columns
    row = matrix[prefix:].mean(axis=0) if changes.get("pooling") == "gap" else matrix[0]
    actual = attention_rollout(model, images)
    assert actual.shape == (2, rows, columns) and actual.dtype == "float32"
    np.testing.assert_allclose(actual[0], row[prefix:].reshape(rows, columns), atol=1e-5)
    np.testing.assert_allclose(row.sum(), 1)


@pytest.mark.parametrize("fusion", FUSE)
def test_heads_are_fused(fusion):
    model, images = reference.build()
    expected = rollout_of(reference.run(model, images)[1], fusion)[0, 1:].reshape(2, 3)
    np.testing.assert_allclose(attention_rollout(model, images, fusion)[0], expected, atol=1e-5)


def test_attention_pooling_weighs_the_patches():
    model, images = reference.build(pooling="map", num_registers=1)
    tokens = keras.Model(model.input, model.get_layer("norm").output)(images)
    _, weights = model.get_layer("pooling")(tokens, return_attention_scores=True)
    weights = ops.convert_to_numpy(weights)[0].mean(axis=0)[0]
    matrix = rollout_of(attention_maps(model, images, blocks=None))
    np.testing.assert_allclose(attention_rollout(model, images)[0], (weights @ matrix[1:])[1:].reshape(2, 3), atol=1e-5)


def test_a_head_of_ones_own_is_named():
    """A user's own layer that pools the tokens is not known, and the model has a class token."""
    vit, images = reference.build(num_registers=1)
    pooled = keras.layers.GlobalAveragePooling1D()(vit.get_layer("norm").output)
    model = keras.Model(vit.input, keras.layers.Dense(3)(pooled))
    matrix = rollout_of(reference.run(vit, images)[1])
    expected = matrix[2:].mean(axis=0)[2:].reshape(2, 3)
    np.testing.assert_allclose(attention_rollout(model, images, readout="gap")[0], expected, atol=1e-5)
    of_token = matrix[0, 2:].reshape(2, 3)
    assert np.abs(of_token - expected).max() > 1e-3
    for readout in (None, "token"):
        np.testing.assert_allclose(attention_rollout(model, images, readout=readout)[0], of_token, atol=1e-5)
    gap, images = reference.build(pooling="gap")
    of_gap = gradient_rollout(gap, images, classes=1)
    np.testing.assert_array_equal(gradient_rollout(gap, images, classes=1, readout="gap"), of_gap)
    assert np.abs(gradient_rollout(vit, images, 1) - gradient_rollout(vit, images, 1, readout="gap")).max() > 1e-4
    with pytest.raises(ValueError, match="`readout`. Expected 'gap' for a model without a class token.*'token'"):
        attention_rollout(gap, images, readout="token")


def test_the_smallest_are_discarded():
    matrices = np.array([[[0.4, 0.1], [0.2, 0.3]], [[0.5, 0.6], [0.7, 0.8]]])
    np.testing.assert_array_equal(discard_smallest(matrices, 0.6), [[[0.4, 0], [0, 0.3]], [[0, 0], [0.7, 0.8]]])
    assert matrices[0, 0, 1] == 0.1, "the array that came in is another's"
    model, images = reference.build(num_layers=1)
    attention = reference.run(model, images)[1][0][0].mean(axis=0)
    attention[attention < np.quantile(attention, 0.5)] = 0
    attention += np.eye(7)
    expected = (attention / attention.sum(axis=1, keepdims=True))[0, 1:].reshape(2, 3)
    np.testing.assert_allclose(attention_rollout(model, images, discard_ratio=0.5)[0], expected, atol=1e-5)


def test_batches_change_nothing():
    model, images = reference.build()
    np.testing.assert_allclose(
        attention_rollout(model, images, batch_size=1), attention_rollout(model, images), atol=1e-6
    )


def test_rollout_of_the_real_model(real):
    model, images, expected = real
    np.testing.assert_allclose(attention_rollout(model, images)[0], expected["rollout_mean"], rtol=1e-3)


def test_what_is_wrong_is_said():
    model, images = reference.build()
    with pytest.raises(ValueError, match="`head_fusion`. Expected one of 'mean', 'max', 'min'. Received: 'sum'"):
        attention_rollout(model, images, "sum")
    with pytest.raises(ValueError, match="`discard_ratio`"):
        attention_rollout(model, images, discard_ratio=1)
    for function in (attention_rollout, gradient_rollout):
        with pytest.raises(ValueError, match="`readout`. Expected one of None, 'token', 'gap'. Received: 'mean'"):
            function(model, images, readout="mean")
