import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import POLICIES, Policy, RandAugment
from keras_vit.data.augment import seeded
from tests.data.images import picture


def test_policies_of_augreg():
    # (RandAugment's operations and magnitude, MixUp's alpha), from the paper's table.
    table = {
        "none": (None, 0),
        "light1": ((2, 0), 0),
        "light2": ((2, 10), 0.2),
        "medium1": ((2, 15), 0.2),
        "medium2": ((2, 15), 0.5),
        "strong1": ((2, 20), 0.5),
        "strong2": ((2, 20), 0.8),
    }
    assert {name: (p.randaugment, p.mixup) for name, p in POLICIES.items() if name != "deit"} == table


def mapped(function, count, threads):
    image = tf.constant(picture(90, (24, 24, 3)), "float32")
    data = tf.data.Dataset.range(count).map(lambda i: function(image, tf.stack([i, i])), num_parallel_calls=threads)
    return np.stack(list(data.as_numpy_iterator()))


@pytest.mark.parametrize("function", [RandAugment(2, 15, 0.5), seeded("RandomErasing", factor=(1, 1))])
def test_the_seed_alone_decides(function):
    first = mapped(function, 12, threads=1)
    np.testing.assert_array_equal(first, mapped(function, 12, threads=5))
    assert first.shape == (12, 24, 24, 3) and first.dtype == "float32"
    assert len({image.tobytes() for image in first}) > 8
    assert first.min() >= 0 and first.max() <= 255


def test_each_operation_of_randaugment_takes_part():
    augment = RandAugment(1, 20)
    image = tf.constant(picture(90, (24, 24, 3)), "float32")
    m, sign, u = tf.constant(0.6), tf.constant(-1.0), tf.constant(0.4)
    outputs = [f(image[None], m, sign, u)[0].numpy() for f in augment._operations]
    for output in outputs:
        assert output.shape == (24, 24, 3) and np.abs(output - image).max() > 1
    assert len({output.tobytes() for output in outputs}) == len(outputs) == 10


def test_shift_and_shear_are_of_the_magnitude():
    augment = RandAugment(1, 30)
    image = np.zeros((20, 20, 3), "float32")
    image[10, 10] = 255
    shifted = augment._operations[8](image[None], 1.0, 1.0, tf.constant(0.25))[0].numpy()
    assert np.argwhere(shifted[..., 0] == 255).tolist() == [[10, 15]]
    assert (shifted[:, :4] == 128).all()


def test_a_reduced_precision_policy_does_not_round_pixels():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        erase = seeded("RandomErasing", factor=(0, 0))
    finally:
        keras.config.set_dtype_policy("float32")
    image = tf.constant(picture(200, (8, 8, 3)), "float32") + 0.123
    data = tf.data.Dataset.from_tensors(image).map(lambda x: erase(x, (0, 1)))
    np.testing.assert_array_equal(next(iter(data)), image)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixup": -0.1}, "`mixup` from 0 to 1. Received: -0.1"),
        ({"label_smoothing": 1.0}, "`label_smoothing` from 0 to 1"),
        ({"randaugment": (2, 31)}, "`randaugment` as"),
        ({"repeats": 0}, "`repeats` to be an integer of at least 1. Received: 0"),
    ],
)
def test_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        Policy(**changes)
