import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.data import Mix, Policy
from tests.errors import refuses

POLICIES = {
    "mixup": Policy(mixup=0.8),
    "cutmix": Policy(cutmix=1.0),
    "switch": Policy(mixup=0.8, cutmix=1.0),
    "smoothed": Policy(mixup=0.2, cutmix=0.5, label_smoothing=0.1),
}


@pytest.fixture(scope="module")
def mixers():
    """Returns one graph per policy, since tracing takes longer than running."""
    specs = [(None, 8, 8, 3), "float32"], [(None, 5), "float32"], [(2,), "int64"]
    signature = [tf.TensorSpec(*spec) for spec in specs]
    return {name: tf.function(Mix(policy), signature) for name, policy in POLICIES.items()}


@given(st.sampled_from(sorted(POLICIES)), st.integers(1, 7), st.integers(0, 2**62), st.integers(0, 2**31))
def test_mix_keeps_label_mass(mixers, name, batch, seed, labels_seed):
    classes = np.random.default_rng(labels_seed).integers(0, 5, batch)
    # The brightness of an image is its class, so that the mean of the pixels equals that of the labels.
    images = np.ones((batch, 8, 8, 3), "float32") * classes[:, None, None, None]
    mixed, labels = mixers[name](images, tf.one_hot(classes, 5), tf.constant([seed, 1], "int64"))
    mixed, labels = np.array(mixed), np.array(labels)
    np.testing.assert_allclose(np.sum(labels, 1), 1, atol=1e-5)
    np.testing.assert_allclose(np.sum(labels, 0).sum(), batch, rtol=1e-5)
    assert np.min(labels) >= -1e-6
    if name == "mixup":
        np.testing.assert_allclose(np.mean(mixed, (1, 2, 3)), labels @ np.arange(5.0), atol=1e-4)
    if name == "cutmix":
        # The label counts fractions of pixels at the edges of the box, and the picture whole pixels.
        assert np.abs(np.mean(mixed, (1, 2, 3)) - labels @ np.arange(5.0)).max() < 4 * (2 * 8 + 1) / 64


def test_mix_switches_between_mixup_and_cutmix(mixers):
    images = np.arange(2, dtype="float32")[:, None, None, None] * np.ones((1, 8, 8, 3), "float32")
    blended = 0
    for seed in range(40):
        mixed, _ = mixers["switch"](images, tf.one_hot([0, 1], 5), tf.constant([seed, 1], "int64"))
        blended += bool(((np.array(mixed) > 0.001) & (np.array(mixed) < 0.999)).any())
    # MixUp changes all pixels, unless an image's partner is the image itself, as in half of the batches.
    assert 3 <= blended <= 30


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_policy_sets_the_strength_of_mixing(kind, request):
    """The larger share of two images is 0.75 on average with an alpha of 1, and more with a smaller alpha."""
    shares = {}
    request.addfinalizer(lambda: keras.config.set_floatx("float32"))
    for alpha, floatx in ((1.0, "float32"), (0.2, "float16")):
        keras.config.set_floatx(floatx)
        _, labels = Mix(Policy(**{kind: alpha}))(np.zeros((256, 16, 16, 3), "float32"), tf.eye(256), (3, 1))
        shares[alpha] = np.max(np.array(labels), 1).mean()
    assert 0.72 < shares[1.0] < 0.8 and 0.88 < shares[0.2] < 0.93


def test_label_smoothing_without_mixing():
    mix, images = Mix(Policy(label_smoothing=0.1)), tf.zeros((2, 4, 4, 3))
    np.testing.assert_allclose(mix(images, tf.eye(2, 5), (0, 1))[1], np.eye(2, 5) * 0.9 + 0.02, atol=1e-6)
    refuses(r"`labels`. Expected floats \(batch, num_classes\)", mix, images, np.array([0, 1]), (0, 1))
