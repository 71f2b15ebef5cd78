import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.distillation.distiller import FrozenTeacher, raw_images
from tests import tiny
from tests.distillation.models import IMAGES, conv_teacher, linear_student, numpy, weights
from tests.errors import refuses
from tests.tiny import assert_close

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
RAW = np.random.default_rng(0).integers(256, size=(2, 16, 16, 3)).astype("float32")


def vit(**changes):
    return tiny.build(num_layers=1, **changes)


@pytest.mark.parametrize("convert", [np.asarray, keras.ops.convert_to_tensor])
def test_raw_images_undo_preprocess_input(convert):
    model = vit(preprocessing=IMAGENET)
    back = raw_images(convert(keras_vit.preprocess_input(RAW, model)), model)
    assert isinstance(back, np.ndarray) == (convert is np.asarray)
    np.testing.assert_allclose(numpy(back), RAW, atol=1e-4)
    np.testing.assert_array_equal(numpy(raw_images(convert(RAW), vit(include_preprocessing=True))), RAW)
    refuses("Expected a model with a `normalization` layer", raw_images, RAW, linear_student())


@pytest.mark.parametrize("teacher_takes_raw", [False, True])
@pytest.mark.parametrize("student_takes_raw", [False, True])
def test_teacher_normalizes_with_its_own_constants(teacher_takes_raw, student_takes_raw):
    teacher = tiny.randomize(vit(include_preprocessing=teacher_takes_raw, preprocessing=IMAGENET))
    student = vit(include_preprocessing=student_takes_raw)
    expected = teacher(keras_vit.preprocess_input(RAW, teacher))
    found = FrozenTeacher(teacher, student).logits(keras_vit.preprocess_input(RAW, student))
    np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-3, atol=1e-3)


def test_gray_images_are_repeated_and_resized():
    teacher = tiny.randomize(vit(preprocessing=IMAGENET))
    student = vit(image_size=(20, 8), in_channels=1)
    # Resizing does not change constant images.
    gray = np.ones((2, 20, 8, 1), "float32") * np.array([-1.0, 0.2], "float32")[:, None, None, None]
    raw = np.ones((2, 16, 16, 3), "float32") * np.array([0.0, 153.0], "float32")[:, None, None, None]
    expected = numpy(teacher(keras_vit.preprocess_input(raw, teacher)))
    np.testing.assert_allclose(numpy(FrozenTeacher(teacher, student).logits(gray)), expected, rtol=1e-3, atol=1e-3)


def test_other_models_get_images_unchanged_or_preprocessed():
    teacher, student = conv_teacher(), linear_student()
    expected = numpy(teacher(IMAGES))
    np.testing.assert_allclose(numpy(FrozenTeacher(teacher, student).logits(IMAGES)), expected, rtol=1e-4, atol=1e-5)
    doubled = FrozenTeacher(teacher, student, preprocessing=lambda images: 2 * images)
    np.testing.assert_allclose(numpy(doubled.logits(IMAGES / 2)), expected, rtol=1e-4, atol=1e-5)
    # The result of the function is resized too.
    tall = np.random.default_rng(1).normal(size=(8, 9, 6, 3)).astype("float32")
    expected = teacher(keras.ops.image.resize(tall, (6, 6), "bilinear", data_format="channels_last"))
    resized = FrozenTeacher(teacher, student, preprocessing=lambda _: tall).logits(IMAGES)
    np.testing.assert_allclose(numpy(resized), numpy(expected), rtol=1e-4, atol=1e-5)


def test_probabilities_become_logits():
    teacher = conv_teacher(activation="softmax")
    frozen = FrozenTeacher(teacher, linear_student(), from_logits=False)
    np.testing.assert_allclose(numpy(keras.ops.softmax(frozen.logits(IMAGES))), numpy(teacher(IMAGES)), atol=1e-5)
    kernel, bias = teacher.layers[-1].get_weights()
    before = numpy(frozen.logits(IMAGES))
    teacher.layers[-1].set_weights([kernel, bias + np.array([1e3, 0, 0, 0, 0])])
    np.testing.assert_array_equal(numpy(frozen.logits(IMAGES)), before)
    frozen.refresh()
    assert (numpy(frozen.logits(IMAGES))[:, 0] > before[:, 0]).all()
    assert np.isfinite(numpy(frozen.logits(IMAGES))).all()


class Careless(keras.Model):
    """A model without `training` and known inputs, which updates its batch statistics in every call."""

    def __init__(self):
        super().__init__()
        self.norm = keras.layers.BatchNormalization()
        self.head = linear_student()

    def call(self, images):
        return self.head(self.norm(images, training=True))


def test_logits_never_change_the_teacher():
    teacher = Careless()
    refuses("`teacher`. Expected a built keras.Model", FrozenTeacher, teacher, linear_student())
    teacher(IMAGES)
    before = weights(teacher)
    assert np.isfinite(numpy(FrozenTeacher(teacher, linear_student()).logits(5 * IMAGES))).all()
    assert_close(weights(teacher), before)
    assert teacher.trainable
    teacher(5 * IMAGES)
    assert any((a != b).any() for a, b in zip(weights(teacher), before, strict=True))


def test_unsuitable_teachers():
    for teacher, message in (
        (conv_teacher(activation="softmax"), "Expected `teacher_from_logits=False`.*Received"),
        (conv_teacher(activation="sigmoid"), "Expected `teacher_from_logits=False`.*Received"),
        (conv_teacher((6, 6, 4)), "Expected `teacher_preprocessing`.*3 channels.*4"),
        (vit(distillation_token=True, return_both_heads=True), "`teacher` to have one output. Received: 2"),
        ("BiT", "`teacher`. Expected a built keras.Model"),
        (vit(task="multi_label"), "`teacher`.*classes that exclude each other"),
        (vit(task="regression"), "`teacher`.*classes that exclude each other"),
    ):
        refuses(message, FrozenTeacher, teacher, linear_student())
    message = "Expected `teacher_from_logits=True`.*returns logits"
    refuses(message, FrozenTeacher, conv_teacher(), linear_student(), from_logits=False)
