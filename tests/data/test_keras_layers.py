import random

import keras
import keras_cv
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import Policy, from_directory
from keras_vit.data.keras_layers import seeded
from tests.data.images import batches, equal
from tests.errors import refuses

PIXELS = (0, 255)
CV, KERAS = keras_cv.layers, keras.layers
LAYERS = {
    "keras_cv RandAugment": lambda: CV.RandAugment(PIXELS),
    "keras_cv AugMix": lambda: CV.AugMix(PIXELS),
    "keras_cv GridMask": lambda: CV.GridMask(fill_mode="gaussian_noise"),
    "keras_cv RandomCutout": lambda: CV.RandomCutout(0.3, 0.3),
    "keras_cv RandomColorJitter": lambda: CV.RandomColorJitter(PIXELS, 0.2, 0.2, 0.2, 0.2),
    "keras_cv RandomRotation": lambda: CV.RandomRotation(0.2),
    "keras_cv RandomApply": lambda: CV.RandomApply(CV.GridMask(), 0.5),
    "keras_cv RandomChoice": lambda: CV.RandomChoice([CV.RandomFlip(seed=1), CV.RandomHue(0.2, PIXELS)]),
    "keras RandAugment": lambda: KERAS.RandAugment(),
    "keras RandomRotation": lambda: KERAS.RandomRotation(0.2, seed=3),
    "keras RandomColorJitter": lambda: KERAS.RandomColorJitter(brightness_factor=0.2, hue_factor=0.1),
    "keras RandomErasing": lambda: KERAS.RandomErasing(),
    "keras Pipeline": lambda: KERAS.Pipeline([KERAS.RandomFlip(), KERAS.RandomZoom(0.2)]),
}
MIXERS = {
    "keras_cv MixUp": lambda: CV.MixUp(alpha=0.8),
    "keras_cv CutMix": lambda: CV.CutMix(),
    "keras_cv Mosaic": lambda: CV.Mosaic(),
    "keras MixUp": lambda: KERAS.MixUp(alpha=0.8),
    "keras CutMix": lambda: KERAS.CutMix(),
}
# The other layers draw their numbers as one of these does.
DRAWN = ("keras_cv AugMix", "keras_cv GridMask", "keras_cv RandomChoice", "keras RandAugment")
MARKS = {name: pytest.mark.long_elsewhere if name in DRAWN else pytest.mark.long for name in LAYERS}
MARKS |= dict.fromkeys(("keras_cv MixUp", "keras_cv CutMix"), pytest.mark.long_elsewhere)


def mapped(function, inputs, threads=None):
    data = tf.data.Dataset.range(8).map(lambda i: function(inputs, tf.stack([i, i])), num_parallel_calls=threads)
    return [[np.asarray(part) for part in tf.nest.flatten(each)] for each in data]


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in LAYERS])
def test_layer_depends_only_on_seed(name):
    layer, other = LAYERS[name](), LAYERS[name]()
    images = tf.reshape(tf.range(16.0 * 16 * 3) / 3.01, (1, 16, 16, 3))
    function = seeded(layer, tf.TensorSpec((1, 16, 16, 3)))
    keras.utils.set_random_seed(5)
    first = mapped(function, images)
    random.seed(7)
    assert equal(first, mapped(seeded(other, tf.TensorSpec((1, 16, 16, 3))), images, threads=4))
    made = np.concatenate([image for (image,) in first])
    assert made.dtype == "float32" and len({image.tobytes() for image in made}) > 1
    assert made.min() >= (-6 if "GridMask" in name else 0) and 100 < made.max() <= 255.1


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in MIXERS])
def test_mixer_mixes_labels_as_images(name):
    # The brightness of an image is its class.
    images = np.ones((6, 32, 32, 3), "float32") * np.arange(6.0, dtype="float32")[:, None, None, None]
    inputs = {"images": tf.constant(images), "labels": tf.eye(6)}
    spec = {"images": tf.TensorSpec((None, 32, 32, 3)), "labels": tf.TensorSpec((None, 6))}
    function = seeded(MIXERS[name](), spec)
    first = mapped(function, inputs)
    assert equal(first, mapped(function, inputs, threads=4)) and not equal(first[:1], first[1:2])
    for mixed, labels in first:
        np.testing.assert_allclose(labels.sum(1), 1, atol=1e-5)
        # Boxes have whole pixels in the images and fractions in the labels.
        np.testing.assert_allclose(
            mixed.mean((1, 2, 3)), labels @ np.arange(6.0), atol=0.01 if "MixUp" in name else 0.6
        )
    assert any((labels.max(1) < 0.99).any() for _, labels in first)


def make(folder, augment, **options):
    return from_directory(folder, image_size=16, batch_size=4, augment=augment, **options)


@pytest.mark.long_elsewhere
def test_pipeline_with_layers_depends_only_on_seed(folder):
    augment = [Policy(label_smoothing=0.1), CV.GridMask(), KERAS.RandomRotation(0.1), CV.MixUp(), CV.CutMix()]
    first, second = make(folder, augment), make(folder, augment, num_parallel_calls=3)
    epoch = batches(first)
    assert equal(epoch, batches(second)) and not equal(epoch, batches(first))
    images, labels = epoch[0]
    assert images.shape == (4, 16, 16, 3) and images.dtype == labels.dtype == "float32"
    np.testing.assert_allclose(labels.sum(1), 1, atol=1e-5)
    assert labels.min() > 0.02


@pytest.mark.long
def test_shards_give_images_of_one_process(folder):
    options = {"drop_remainder": True, "labels": "none", "training": True}
    one = batches(make(folder, CV.RandomHue(0.2, PIXELS), **options))
    parts = [batches(make(folder, CV.RandomHue(0.2, PIXELS), **options, num_shards=2, shard_index=i)) for i in (0, 1)]
    assert equal(one, [[np.concatenate([a, b])] for (a,), (b,) in zip(*parts, strict=True)])


def test_images_without_labels_take_layers_but_no_mixing(folder):
    assert make(folder, KERAS.RandomFlip(), labels="none").element_spec.shape == (None, 16, 16, 3)
    refuses("one-hot labels for `augment` that mixes", make, folder, CV.MixUp(), labels="none")


class Plain(keras.layers.Layer):
    """Adds noise that no seed determines."""

    def call(self, images, training=False):
        return images + tf.random.normal(tf.shape(images))


@pytest.mark.parametrize(
    "layer, message",
    [
        (lambda: KERAS.RandomBrightness(0.2, value_range=(0, 1)), r"layers with value_range=\(0, 255\)"),
        (lambda: CV.RandomJpegQuality((75, 100)), "layers for pixels of 0..255. .*largest output is 1"),
        (lambda: KERAS.Rescaling(1 / 255), "layers for pixels of 0..255. .*Rescaling"),
        (lambda: KERAS.RandomCrop(8, 8), "layers that keep the shapes .*RandomCrop"),
        (lambda: KERAS.RandomFlip(data_format="channels_first"), "data_format='channels_last'"),
        (lambda: KERAS.AugMix(), "keras_cv.layers.AugMix"),
        (lambda: CV.FourierMix(), "draw random numbers from keras.random .*FourierMix, with RandomGamma|RandomShuffle"),
        (lambda: CV.RandomChoice([CV.MixUp(), CV.CutMix()], batchwise=True), "layer that takes a batch .*RandomChoice"),
        (Plain, "draw random numbers from keras.random .*Plain, with RandomStandardNormal"),
        (lambda: KERAS.Dense(2), "Expected"),
    ],
)
def test_layer_that_pipeline_cannot_seed_or_scale_is_refused(folder, layer, message):
    refuses(message, make, folder, layer())
