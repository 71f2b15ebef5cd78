import math

import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.inspection import attention_distance
from tests.inspection import reference


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
    maps = keras_vit.inspection.attention_maps(model, images)
    looks = maps[:, :, 1:, 1:].sum(axis=-1) > 0
    assert not looks[:, 0].any() and 0 < looks[:, 1].sum() < looks[:, 1].size and looks[:, 2].all()
    per_query = [[query_distances(maps[i, h], 2, 3, (4, 4)) for i in range(2)] for h in range(3)]
    expected = [0, *(np.concatenate(of_head).mean() for of_head in per_query[1:])]
    for batch_size in (1, 2):
        np.testing.assert_allclose(attention_distance(model, images, batch_size=batch_size), [expected], rtol=1e-5)


def test_pixels_are_those_of_the_image_below_a_resnet():
    model, images = reference.build(stages=(1, 1), width_factor=0.5, patch_size=1, image_size=(32, 48))
    (scores,) = (keras_vit.inspection.attention_maps(model, images[:1], blocks=0),)
    expected = [distance_of(scores[0, h], 4, 6, (8, 8)) for h in range(3)]
    np.testing.assert_allclose(attention_distance(model, images[:1])[0], expected, rtol=1e-5)


def test_distance_in_the_real_model(real):
    model, images, expected = real
    actual = attention_distance(model, images)
    np.testing.assert_allclose(actual, expected["attention_distance_pixels"], rtol=1e-3)
    # Deep blocks look farther (figure 7): blocks as they are named, block_01 and block_11.
    assert actual[11].mean() >= 1.5 * actual[1].mean()
