import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.inspection import attention_distance, attention_maps, attention_rollout, gradient_rollout
from keras_vit.inspection.attention import discard_smallest
from tests.errors import refuses
from tests.inspection import reference

FUSE = {"mean": np.mean, "max": np.max, "min": np.min}


def test_attention_maps_of_chosen_blocks_and_batches():
    model, images = reference.build(num_layers=3)
    first, second, third = attention_maps(model, images, blocks=None)
    np.testing.assert_array_equal(attention_maps(model, images), third)
    np.testing.assert_array_equal(attention_maps(model, images, blocks=-3), first)
    last, middle = attention_maps(model, images, blocks=[2, -2], batch_size=1)
    np.testing.assert_allclose(last, third, atol=1e-6)
    np.testing.assert_allclose(middle, second, atol=1e-6)
    np.testing.assert_array_equal(attention_maps(model, images, blocks=np.int64(2)), third)
    np.testing.assert_array_equal(attention_maps(model, images, blocks=np.array([0]))[0], first)


def test_attention_maps_refuse_invalid_blocks_or_images():
    model, images = reference.build()
    refuses(r"below 2.*Received: \[0, -3\]", attention_maps, model, images, blocks=[0, -3])
    for blocks in ("last", [0.5], True, [[0]]):
        refuses("`blocks`. Expected None, or integers below 2", attention_maps, model, images, blocks=blocks)
    refuses("at least one image", attention_maps, model, images[:0])
    model = keras_vit.ViT("Ti/16", image_size=32, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
    expected = r"`images`. Expected images of shape \(32, 32, 3\).*resize them, or .*image_size=\(48, 32\)"
    refuses(expected, attention_maps, model, np.zeros((1, 48, 32, 3)))


def query_distances(attention, rows, columns, patch):
    """Returns the mean distance per query of one image and head, without queries that attend to no patch."""
    prefix = len(attention) - rows * columns
    weights = attention[prefix:, prefix:]
    places = np.array([(row * patch, column * patch) for row in range(rows) for column in range(columns)])
    distances = np.linalg.norm(places[:, None] - places, axis=-1)
    return [np.average(d, weights=w) for d, w in zip(distances, weights, strict=True) if w.any()]


def test_distance_ignores_queries_without_patches():
    model, images = reference.build(num_layers=1)
    sign = np.repeat([1.0, -1.0], 6)
    positions = model.get_layer("position_embedding").embeddings
    values = np.array(ops.convert_to_numpy(positions))
    values[0, 0] = 1e6 * sign
    positions.assign(values)
    attention = model.get_layer("block_00").attention
    kernel, bias = (np.array(ops.convert_to_numpy(w)).reshape(-1, 3, 3, 4) for w in attention.qkv.weights)
    # The keys of the first two heads differ only between class token and patches. All queries of the first head attend
    # only to the class token. So do queries of the second head whose first number is positive.
    kernel[:, :2, :2], bias[:, :2, :2] = 0, 0
    kernel[:, 1, :2] = 1e3 * sign[:, None, None]
    bias[:, 0, 0] = 1e3
    kernel[0, 0, 1] = 1e3
    attention.qkv.set_weights([kernel.reshape(12, 36), bias.reshape(36)])
    model.get_layer("block_00").norm_1.set_weights([np.ones(12), np.zeros(12)])
    maps = attention_maps(model, images)
    looks = maps[:, :, 1:, 1:].sum(axis=-1) > 0
    assert not looks[:, 0].any() and 0 < looks[:, 1].sum() < looks[:, 1].size and looks[:, 2].all()
    per_query = [[query_distances(maps[i, h], 2, 3, 4) for i in range(2)] for h in range(3)]
    expected = [0, *(np.concatenate(of_head).mean() for of_head in per_query[1:])]
    for batch_size in (1, 2):
        np.testing.assert_allclose(attention_distance(model, images, batch_size=batch_size), [expected], rtol=1e-5)


def test_distance_of_hybrid_is_in_image_pixels():
    model, images = reference.build(stages=(1, 1), width_factor=0.5, patch_size=1, image_size=(32, 48))
    scores = attention_maps(model, images[:1], blocks=0)
    expected = [np.mean(query_distances(scores[0, h], 4, 6, 8)) for h in range(3)]
    np.testing.assert_allclose(attention_distance(model, images[:1])[0], expected, rtol=1e-5)


@pytest.mark.long
def test_maps_distance_and_rollout_of_published_vit_b16(real):
    model, images, expected = real
    (maps,) = attention_maps(model, images, blocks=11)
    np.testing.assert_allclose(maps, expected["last_block_attention"], rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(attention_rollout(model, images)[0], expected["rollout_mean"], rtol=1e-3)
    np.testing.assert_allclose(attention_distance(model, images), expected["attention_distance_pixels"], rtol=1e-3)


def rollout_of(maps, fusion="mean"):
    """Returns the rollout matrix of the first image: fused heads plus identity, normalised, multiplied over blocks."""
    product = None
    for of_block in maps:
        attention = FUSE[fusion](of_block[0], axis=0) + np.eye(of_block.shape[-1])
        attention = np.stack([row / row.sum() for row in attention])
        product = attention if product is None else np.dot(attention, product)
    return product


@pytest.mark.parametrize("changes", reference.MODELS.values(), ids=reference.MODELS)
def test_maps_distance_and_rollout_match_definition(changes):
    model, images = reference.build(**changes)
    logits, maps = reference.run(model, images)
    np.testing.assert_allclose(ops.convert_to_numpy(model(images)), logits, atol=1e-4)
    rows, columns = (side // 4 for side in model.input_shape[1:3])
    for actual, wanted in zip(attention_maps(model, images, blocks=None), maps, strict=True):
        assert actual.dtype == "float32"
        np.testing.assert_allclose(actual, wanted, atol=1e-5)
        np.testing.assert_allclose(actual.sum(axis=-1), 1, atol=1e-5)
    grid = rows, columns, 4
    distances = [[[query_distances(x[i, h], *grid) for i in range(2)] for h in range(3)] for x in maps]
    distances = np.mean(distances, axis=(2, 3))
    matrix = rollout_of(maps)
    prefix = len(matrix) - rows * columns
    row = matrix[reference.read(changes, prefix)].mean(axis=0)
    np.testing.assert_allclose(row.sum(), 1)
    for batch_size in (1, 2):
        np.testing.assert_allclose(attention_distance(model, images, batch_size=batch_size), distances, rtol=1e-5)
        rollout = attention_rollout(model, images, batch_size=batch_size)
        assert rollout.shape == (2, rows, columns) and rollout.dtype == "float32"
        np.testing.assert_allclose(rollout[0], row[prefix:].reshape(rows, columns), atol=1e-5)


@pytest.mark.parametrize("fusion", FUSE)
def test_attention_rollout_head_fusion(fusion):
    model, images = reference.build()
    expected = rollout_of(reference.run(model, images)[1], fusion)[0, 1:].reshape(2, 3)
    np.testing.assert_allclose(attention_rollout(model, images, fusion)[0], expected, atol=1e-5)


def test_rollout_is_weighted_by_attention_pooling():
    model, images = reference.build(pooling="map", num_registers=1)
    tokens = keras.Model(model.input, model.get_layer("norm").output)(images)
    _, weights = model.get_layer("pooling")(tokens, return_attention_scores=True)
    weights = ops.convert_to_numpy(weights)[0].mean(axis=0)[0]
    matrix = rollout_of(attention_maps(model, images, blocks=None))
    np.testing.assert_allclose(attention_rollout(model, images)[0], (weights @ matrix[1:])[1:].reshape(2, 3), atol=1e-5)


def test_rollout_of_heads_that_read_two_representations():
    distilled, images = reference.build(distillation_token=True)
    of_second = keras.Model(distilled.input, distilled.get_layer("head_dist").output)
    both, _ = reference.build(pooling="token_gap")
    rows = [rollout_of(attention_maps(model, images, blocks=None)) for model in (distilled, both)]
    expected = {
        distilled: (rows[0][0] + rows[0][1])[2:] / 2,
        of_second: rows[0][1, 2:],
        both: (rows[1][0] + rows[1][1:].mean(axis=0))[1:] / 2,
    }
    for model, row in expected.items():
        np.testing.assert_allclose(attention_rollout(model, images)[0].ravel(), row, atol=1e-5)
        assert gradient_rollout(model, images, 1).any()
    of_token = attention_rollout(distilled, images, readout="token")[0]
    np.testing.assert_allclose(of_token.ravel(), rows[0][0, 2:], atol=1e-5)


def test_readout_of_custom_head():
    """Keras' pooling layer is not recognised, so `readout` must be set. TokenPooling is recognised."""
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
    pooled = keras_vit.layers.TokenPooling("gap", num_prefix_tokens=2)(vit.get_layer("norm").output)
    model = keras.Model(vit.input, keras.layers.Dense(3)(pooled))
    np.testing.assert_allclose(attention_rollout(model, images)[0], expected, atol=1e-5)
    gap, images = reference.build(pooling="gap")
    of_gap = gradient_rollout(gap, images, classes=1)
    np.testing.assert_array_equal(gradient_rollout(gap, images, classes=1, readout="gap"), of_gap)
    assert np.abs(gradient_rollout(vit, images, 1) - gradient_rollout(vit, images, 1, readout="gap")).max() > 1e-4
    expected = "`readout`. Expected 'gap' for a model without a class token.*'token'"
    refuses(expected, attention_rollout, gap, images, readout="token")


def test_discard_ratio_zeroes_smallest_weights():
    matrices = np.array([[[0.4, 0.1], [0.2, 0.3]], [[0.5, 0.6], [0.7, 0.8]]])
    np.testing.assert_array_equal(discard_smallest(matrices, 0.6), [[[0.4, 0], [0, 0.3]], [[0, 0], [0.7, 0.8]]])
    assert matrices[0, 0, 1] == 0.1, "the argument must not change"
    model, images = reference.build(num_layers=1)
    attention = reference.run(model, images)[1][0][0].mean(axis=0)
    attention[attention < np.quantile(attention, 0.5)] = 0
    attention += np.eye(7)
    expected = (attention / attention.sum(axis=1, keepdims=True))[0, 1:].reshape(2, 3)
    np.testing.assert_allclose(attention_rollout(model, images, discard_ratio=0.5)[0], expected, atol=1e-5)
