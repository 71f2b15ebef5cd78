import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import POLICIES, Policy, RandAugment, from_directory
from tests.data.images import picture, write_classes
from tests.tiny import dtype_policy


def test_augreg_policies_match_paper():
    policies = [POLICIES[name] for name in ("none", "light1", "light2", "medium1", "medium2", "strong1", "strong2")]
    magnitudes = [0, 10, 15, 15, 20, 20]
    assert [policy.randaugment for policy in policies] == [None, *((2, magnitude) for magnitude in magnitudes)]
    assert [policy.mixup for policy in policies] == [0, 0, 0.2, 0.2, 0.5, 0.5, 0.8]


def mapped(function, count, threads):
    image = tf.constant(picture(90, (24, 24, 3)), "float32")
    data = tf.data.Dataset.range(count).map(lambda i: function(image, tf.stack([i, i])), num_parallel_calls=threads)
    return np.stack(list(data.as_numpy_iterator()))


@pytest.mark.parametrize("arguments", [(2, 2), (2, 5, 0.5, "timm")], ids=["official", "timm"])
def test_randaugment_depends_only_on_seed(arguments):
    function = RandAugment(*arguments)
    first = mapped(function, 12, threads=1)
    np.testing.assert_array_equal(first, mapped(function, 12, threads=5))
    assert first.shape == (12, 24, 24, 3) and first.dtype == "float32"
    assert len({image.tobytes() for image in first}) > 4
    assert first.min() >= 0 and first.max() <= 255


@pytest.mark.parametrize("operations, share", [("official", 1.0), ("timm", 0.5)])
def test_randaugment_operations_are_equally_frequent(operations, share):
    augment = RandAugment(1, 9, operations=operations)
    number = len(augment.operations)
    # Each operation fills the image with its number.
    augment.operations = [lambda x, m, s, at, i=i: tf.fill(x.shape, tf.constant(i + 1, "uint8")) for i in range(number)]
    data = tf.data.Dataset.range(3000).map(lambda i: augment(tf.zeros((1, 1, 3)), tf.stack([i, i]))[0, 0, 0])
    counts = np.bincount(np.array(list(data.as_numpy_iterator()), "int32"), minlength=number + 1)
    expected = 3000 * share / number
    assert counts[0] == 0 if share == 1 else abs(counts[0] - 1500) < 4 * 750**0.5
    assert (np.abs(counts[1:] - expected) < 4.5 * expected**0.5).all()


def test_randaugment_magnitude_and_sign_distribution():
    augment = RandAugment(1, 9, 0.5, "timm")
    # The operation is skipped with probability 0.5.
    augment.operations = [lambda x, m, s, at: tf.cast(tf.reshape(tf.stack([m * 200, s + 2, 1.0]), (1, 1, 3)), "uint8")]
    data = tf.data.Dataset.range(4000).map(lambda i: augment(tf.zeros((1, 1, 3)), tf.stack([i, i]))[0, 0])
    levels, signs, applied = np.array(list(data.as_numpy_iterator())).T
    levels, signs = levels[applied == 1], signs[applied == 1]
    assert abs(np.median(levels) - 180) < 2 and levels.max() == 200
    # The largest magnitude, 10, is two standard deviations above 9.
    assert 0.01 < (levels == 200).mean() < 0.04
    assert set(signs) == {1, 3} and abs(signs.mean() - 2) < 0.1


def test_randaugment_rounding_of_input():
    image = tf.fill((4, 4, 3), 100.75)
    for operations, whole in (("official", 100), ("timm", 101)):
        augment = RandAugment(1, 9, operations=operations)
        augment.operations = [lambda x, m, s, at: x]
        np.testing.assert_array_equal(augment(image, (0, 1)), np.full((4, 4, 3), whole, "float32"))


def test_batches_are_float32_under_mixed_bfloat16(tmp_path):
    write_classes(tmp_path, 6, 2)
    with dtype_policy("mixed_bfloat16"):
        data = from_directory(tmp_path, image_size=16, batch_size=6, augment=Policy(mixup=0.5, erasing=0.25))
        for part in next(iter(data)):
            assert part.dtype == "float32" and np.any(part != tf.cast(tf.cast(part, "bfloat16"), "float32"))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"mixup": -0.1}, "`mixup`. Expected a number from 0 to 1. Received: -0.1"),
        ({"label_smoothing": 1.0}, "`label_smoothing`. Expected a number in"),
        ({"randaugment": (1,)}, "`randaugment`. Expected .* 0 to 30"),
        ({"randaugment": (2, 31)}, "`randaugment`. Expected .* 0 to 30"),
        ({"randaugment": (2, 15), "operations": "timm"}, "`randaugment`. Expected .* 0 to 10"),
        ({"operations": "pil"}, "`operations`. Expected one of 'official', 'timm'. Received: 'pil'"),
        ({"magnitude_std": -1}, "`magnitude_std`. Expected a number of at least 0. Received: -1"),
        ({"repeats": 0}, "`repeats`. Expected an integer of at least 1. Received: 0"),
    ],
)
def test_policy_refuses_invalid_argument(changes, message):
    with pytest.raises(ValueError, match=message):
        Policy(**changes)
