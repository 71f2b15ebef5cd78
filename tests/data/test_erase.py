import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.data import Policy, from_directory
from keras_vit.data.steps import RandomErasing
from tests.data.images import batches, write_classes
from tests.peers import peer


def erased(count, shape, **options):
    """Erases constant images, each with its own seed; the constant, 1000, does not occur in the noise."""
    erase, image = RandomErasing(**{"probability": 1.0, **options}), tf.fill(shape, 1000.0)
    data = tf.data.Dataset.range(count).map(lambda i: erase(image, tf.stack([i, i])), num_parallel_calls=2)
    return np.stack(list(data.as_numpy_iterator()))


def boxes(images):
    """Returns (top, left, height, width) of the rectangle erased in each image, (images, 4)."""
    found = []
    for image in np.asarray(images):
        inside = (image != 1000).all(axis=-1)
        assert (inside == (image != 1000).any(axis=-1)).all()
        rows, columns = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
        place = rows[0], columns[0], len(rows), len(columns)
        assert inside.sum() == len(rows) * len(columns)
        found.append(place)
    return np.array(found)


def test_erasing_probability_area_position_and_noise():
    images = erased(2000, (40, 60, 3), probability=0.25, mean=[-3.0, 0.0, 3.0], std=[0.5, 1.0, 2.0])
    chosen = (images != 1000).any(axis=(1, 2, 3))
    assert abs(chosen.mean() - 0.25) < 0.04
    top, left, height, width = boxes(images[chosen]).T
    areas, aspects = height * width / 2400, height / width
    # The tolerance covers the rounding of the sides to whole pixels.
    assert 0.015 < areas.min() < 0.04 and 0.3 < areas.max() < 0.35
    assert 0.25 < aspects.min() < 0.4 and 2.5 < aspects.max() < 4
    # The rectangle may lie anywhere in the image, also at its edges.
    assert top.min() == left.min() == 0 and (top + height).max() == 40 and (left + width).max() == 60
    noise = images[(images != 1000).all(axis=-1)]
    np.testing.assert_allclose(noise.mean(axis=0), [-3, 0, 3], atol=0.03)
    np.testing.assert_allclose(noise.std(axis=0), [0.5, 1, 2], rtol=0.01)


@given(height=st.integers(1, 40), width=st.integers(1, 40), channels=st.integers(1, 4))
def test_erasing_image_of_any_size(height, width, channels):
    image = RandomErasing(1.0)(tf.fill((height, width, channels), 1000.0), (0, height))
    assert image.shape == (height, width, channels) and np.isfinite(image).all()


@pytest.mark.parametrize("normalize, mean, std", [(True, 0, 1), (False, 127.5, 127.5)])
def test_erasing_noise_is_standard_normal_if_normalized(tmp_path, normalize, mean, std):
    write_classes(tmp_path, 2, 1)
    options = {"normalize": normalize, "labels": "none", "repeat": True, "augment": Policy(erasing=1.0)}
    data = from_directory(tmp_path, image_size=64, batch_size=2, **options)
    images = np.concatenate([images for images, *_ in batches(data.take(50))])
    # Values outside the range of a picture are noise: 32% of the noise, on both sides together.
    outside = images[np.abs(images - mean) > std * 1.001]
    assert len(outside) > 1000
    np.testing.assert_allclose(np.abs(outside - mean).mean() / std, 1.525, rtol=0.02)


@pytest.mark.long
def test_erased_rectangles_are_distributed_like_timm():
    import torch

    theirs = peer("timm.data.random_erasing").RandomErasing(1.0, mode="pixel", device="cpu")
    torch.manual_seed(0)
    images = torch.stack([theirs(torch.full((3, 48, 64), 1000.0)) for _ in range(1500)])
    expected, found = boxes(images.permute(0, 2, 3, 1).numpy()), boxes(erased(1500, (48, 64, 3)))
    for measure in (lambda x: x[:, 2] * x[:, 3], lambda x: x[:, 2] / x[:, 3], lambda x: x[:, 0], lambda x: x[:, 1]):
        both = [np.quantile(measure(each), (0.1, 0.25, 0.5, 0.75, 0.9)) for each in (expected, found)]
        np.testing.assert_allclose(*both, rtol=0.12, atol=1.5)
