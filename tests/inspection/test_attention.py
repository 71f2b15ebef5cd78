import math

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.inspection import attention_distance, attention_maps, attention_rollout, gradient_rollout
from keras_vit.inspection.attention import discard_smallest
from tests.inspection import reference


@pytest.mark.parametrize("changes", reference.MODELS.values(), ids=reference.MODELS)
def test_maps_are_those_of_the_definition(changes):
    model, images = reference.build(**changes)
    maps = attention_maps(model, images, blocks=None)
    logits, expected = reference.run(model, images)
    np.testing.assert_allclose(ops.convert_to_numpy(model(images)), logits, atol=1e-4)
    assert len(maps) == 2
    for actual, wanted in zip(maps, expected, strict=True):
        assert actual.dtype == "float32"
        np.testing.assert_allclose(actual, wanted, atol=1e-5)
        np.testing.assert_allclose(actual.sum(axis=-1), 1, atol=1e-5)


def test_blocks_are_chosen_and_batches_joined():
    model, images = reference.build(num_layers=3)
    first, second, third = attention_maps(model, images, blocks=None)
    np.testing.assert_array_equal(attention_maps(model, images), third)
    np.testing.assert_array_equal(attention_maps(model, images, blocks=-3), first)
    last, middle = attention_maps(model, images, blocks=[2, -2], batch_size=1)
    np.testing.assert_allclose(last, third, atol=1e-6)
    np.testing.assert_allclose(middle, second, atol=1e-6)
    np.testing.assert_array_equal(attention_maps(model, images, blocks=np.int64(2)), third)
    np.testing.assert_array_equal(attention_maps(model, images, blocks=np.array([0]))[0], first)


def test_fused_and_explicit_attention_give_the_same_logits(monkeypatch):
    model, images = reference.build(num_registers=2, position_embedding="relative")
    logits = []
    # Whether there is a fused kernel depends on the backend and its device: here both ways are taken on each.
    for fused in (True, False):
        monkeypatch.setattr("keras_vit.layers.fused_attention.has_fused_kernel", lambda fused=fused: fused)
        logits.append(ops.convert_to_numpy(model(images)))
    np.testing.assert_allclose(*logits, atol=1e-5)
    # Nor does looking on leave anything behind.
    attention_maps(model, images)
    np.testing.assert_array_equal(ops.convert_to_numpy(model(images)), logits[1])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_rows_sum_to_one_in_mixed_precision(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model, images = reference.build()
    finally:
        keras.config.set_dtype_policy(before)
    maps = attention_maps(model, images)
    np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(maps, reference.run(model, images)[1][1], atol=0.05)


def test_last_block_of_the_real_model(real):
    model, images, expected = real
    (actual,) = attention_maps(model, images, blocks=11)
    np.testing.assert_allclose(actual, expected["last_block_attention"], rtol=1e-3, atol=1e-7)


def test_wrong_blocks_and_batches_are_refused():
    model, images = reference.build()
    with pytest.raises(ValueError, match=r"below 2, the model's depth. Received: 2"):
        attention_maps(model, images, blocks=2)
    with pytest.raises(ValueError, match=r"below 2.*Received: \[0, -3\]"):
        attention_maps(model, images, blocks=[0, -3])
    for blocks in ("last", 0.5, [0.5], True, [[0]]):
        with pytest.raises(ValueError, match="`blocks`. Expected None, or integers below 2"):
            attention_maps(model, images, blocks=blocks)
    with pytest.raises(ValueError, match="at least one image"):
        attention_maps(model, images[:0])
    with pytest.raises(ValueError, match="`batch_size`"):
        attention_maps(model, images, batch_size=0)


def query_distances(attention, rows, columns, patch):
    """Of one image and head, by loops over the pairs of patches, those that look at none left out."""
    prefix = len(attention) - rows * columns
    means = []
    for q in range(rows * columns):
        total = weights = 0
        for k in range(rows * columns):
            weight = attention[prefix + q, prefix + k]
            down, right = q // columns - k // columns, q % columns - k % columns
            total += weight * math.sqrt((down * patch[0]) ** 2 + (right * patch[1]) ** 2)
            weights += weight
        if weights:
            means.append(total / weights)
    return means


def distance_of(attention, rows, columns, patch):
    return np.mean(query_distances(attention, rows, columns, patch))


@pytest.mark.parametrize("changes", reference.MODELS.values(), ids=reference.MODELS)
def test_distance_is_that_of_the_definition(changes):
    model, images = reference.build(**changes)
    height, width, _ = model.input_shape[1:]
    maps = reference.run(model, images)[1]
    expected = [
        [np.mean([distance_of(of_block[i, h], height // 4, width // 4, (4, 4)) for i in range(2)]) for h in range(3)]
        for of_block in maps
    ]
    np.testing.assert_allclose(attention_distance(model, images), expected, rtol=1e-5)
    np.testing.assert_allclose(attention_distance(model, images, batch_size=1), expected, rtol=1e-5)


def test_queries_that_look_at_no_patch_are_left_out():
    model, images = reference.build(num_layers=1)
    sign = np.repeat([1.0, -1.0], 6)
    positions = model.get_layer("position_embedding").embeddings
    values = np.array(ops.convert_to_numpy(positions))
    values[0, 0] = 1e6 * sign
    positions.assign(values)
    attention = model.get_layer("block_00").attention
    kernel, bias = (np.array(ops.convert_to_numpy(w)).reshape(-1, 3, 3, 4) for w in attention.qkv.weights)
    # All keys of the first two heads tell the class token from patches. All queries of the first look for it, of the
    # second those with a positive first number.
    kernel[:, :2, :2], bias[:, :2, :2] = 0, 0
    kernel[:, 1, :2] = 1e3 * sign[:, None, None]
    bias[:, 0, 0] = 1e3
    kernel[0, 0, 1] = 1e3
    attention.qkv.set_weights([kernel.reshape(12, 36), bias.reshape(36)])
    model.get_layer("block_00").norm_1.set_weights([np.ones(12), np.zeros(12)])
    maps = attention_maps(model, images)
    looks = maps[:, :, 1:, 1:].sum(axis=-1) > 0
    assert not looks[:, 0].any() and 0 < looks[:, 1].sum() < looks[:, 1].size and looks[:, 2].all()
    per_query = [[query_distances(maps[i, h], 2, 3, (4, 4)) for i in range(2)] for h in range(3)]
    expected = [0, *(np.concatenate(of_head).mean() for of_head in per_query[1:])]
    for batch_size in (1, 2):
        np.testing.assert_allclose(attention_distance(model, images, batch_size=batch_size), [expected], rtol=1e-5)


def test_pixels_are_those_of_the_image_below_a_resnet():
    model, images = reference.build(stages=(1, 1), width_factor=0.5, patch_size=1, image_size=(32, 48))
    (scores,) = (attention_maps(model, images[:1], blocks=0),)
    expected = [distance_of(scores[0, h], 4, 6, (8, 8)) for h in range(3)]
    np.testing.assert_allclose(attention_distance(model, images[:1])[0], expected, rtol=1e-5)


def test_distance_in_the_real_model(real):
    model, images, expected = real
    actual = attention_distance(model, images)
    np.testing.assert_allclose(actual, expected["attention_distance_pixels"], rtol=1e-3)
    # Deep blocks look farther (figure 7): blocks as they are named, block_01 and block_11.
    assert actual[11].mean() >= 1.5 * actual[1].mean()


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
    row = matrix[reference.read(changes, prefix)].mean(axis=0)
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


def test_heads_that_read_two_tokens_or_a_token_and_the_patches():
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


def test_a_head_of_ones_own_is_named():
    """Keras' layer that pools the tokens is not known, and the model has a class token; this package's is known."""
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


def test_wrong_arguments_are_refused():
    model, images = reference.build()
    with pytest.raises(ValueError, match="`head_fusion`. Expected one of 'mean', 'max', 'min'. Received: 'sum'"):
        attention_rollout(model, images, "sum")
    with pytest.raises(ValueError, match="`discard_ratio`"):
        attention_rollout(model, images, discard_ratio=1)
    for function in (attention_rollout, gradient_rollout):
        with pytest.raises(ValueError, match="`readout`. Expected one of None, 'token', 'gap'. Received: 'mean'"):
            function(model, images, readout="mean")


def test_images_of_another_size_are_refused_with_what_to_do():
    model = keras_vit.ViT("Ti/16", image_size=32, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
    expected = r"`images`. Expected images of shape \(32, 32, 3\).*resize them, or .*image_size=\(48, 32\)"
    with pytest.raises(ValueError, match=expected):
        attention_maps(model, np.zeros((1, 48, 32, 3)))
    with pytest.raises(ValueError, match=r"where None is any number. Received: \(3, 32, 32\)"):
        attention_maps(model, np.zeros((1, 3, 32, 32)))
