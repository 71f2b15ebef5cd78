import math

import numpy as np
import pytest

import keras_vit
from keras_vit.inspection import attention_distance
from tests.inspection import reference


def distance_of(attention, rows, columns, patch):
    """Of one image and head, by loops over the pairs of patches."""
    prefix = len(attention) - rows * columns
    means = []
    for q in range(rows * columns):
        total = weights = 0
        for k in range(rows * columns):
            weight = attention[prefix + q, prefix + k]
            down, right = q // columns - k // columns, q % columns - k % columns
            total += weight * math.sqrt((down * patch[0]) ** 2 + (right * patch[1]) ** 2)
            weights += weight
        means.append(total / weights)
    return sum(means) / len(means)


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
