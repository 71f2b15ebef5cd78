import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.distillation.teacher import FrozenTeacher, raw_images
from tests import tiny
from tests.distillation.models import IMAGES, assert_equal, conv_teacher, linear_student, weights

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def vit(**changes):
    return tiny.build(num_layers=1, **changes)


@pytest.mark.parametrize("convert", [np.asarray, keras.ops.convert_to_tensor])
def test_raw_images_undo_preprocess_input(convert):
    model = vit(**IMAGENET)
    images = np.random.default_rng(0).integers(256, size=(2, 16, 16, 3)).astype("float32")
    back = raw_images(convert(keras_vit.preprocess_input(images, model)), model)
    assert isinstance(back, np.ndarray) == (convert is np.asarray)
    np.testing.assert_allclose(numpy(back), images, atol=1e-4)
    np.testing.assert_array_equal(numpy(raw_images(convert(images), vit(include_preprocessing=True))), images)
    with pytest.raises(ValueError, match="Expected a model with a `normalization` layer"):
        raw_images(images, linear_student())


@pytest.mark.parametrize("teacher_takes_raw", [False, True])
@pytest.mark.parametrize("student_takes_raw", [False, True])
def test_each_of_our_models_gets_its_own_constants(teacher_takes_raw, student_takes_raw):
    teacher = tiny.randomize(vit(include_preprocessing=teacher_takes_raw, **IMAGENET))
    student = vit(include_preprocessing=student_takes_raw)
    images = np.random.default_rng(0).integers(256, size=(2, 16, 16, 3)).astype("float32")
    expected = teacher(keras_vit.preprocess_input(images, teacher))
    found = FrozenTeacher(teacher, student).logits(keras_vit.preprocess_input(images, student))
    np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-3, atol=1e-3)


def test_gray_images_are_repeated_and_resized():
    teacher = tiny.randomize(vit(**IMAGENET))
    student = vit(image_size=(20, 8), in_channels=1)
    # Constant images stay so in any size.
    gray = np.ones((2, 20, 8, 1), "float32") * np.array([-1.0, 0.2], "float32")[:, None, None, None]
    raw = np.ones((2, 16, 16, 3), "float32") * np.array([0.0, 153.0], "float32")[:, None, None, None]
    expected = teacher(keras_vit.preprocess_input(raw, teacher))
    np.testing.assert_allclose(
        numpy(FrozenTeacher(teacher, student).logits(gray)), numpy(expected), rtol=1e-3, atol=1e-3
    )


def test_other_teachers_get_the_images_as_they_are_or_as_told():
    teacher = conv_teacher()
    student = linear_student()
    expected = numpy(teacher(IMAGES))
    np.testing.assert_allclose(numpy(FrozenTeacher(teacher, student).logits(IMAGES)), expected, rtol=1e-4, atol=1e-5)
    told = FrozenTeacher(teacher, student, preprocessing=lambda images: 2 * images)
    np.testing.assert_allclose(numpy(told.logits(IMAGES / 2)), expected, rtol=1e-4, atol=1e-5)
    # What the function returns is still resized.
    resized = FrozenTeacher(teacher, student, preprocessing=lambda x: keras.ops.repeat(x, 2, axis=1))
    assert resized.logits(IMAGES).shape == (8, 5)


def test_probabilities_become_logits():
    teacher = conv_teacher(activation="softmax")
    logits = numpy(FrozenTeacher(teacher, linear_student(), from_logits=False).logits(IMAGES))
    np.testing.assert_allclose(numpy(keras.ops.softmax(logits)), numpy(teacher(IMAGES)), atol=1e-5)
    kernel, bias = teacher.layers[-1].get_weights()
    teacher.layers[-1].set_weights([kernel, bias + np.array([1e3, 0, 0, 0, 0])])
    assert np.isfinite(numpy(FrozenTeacher(teacher, linear_student(), from_logits=False).logits(IMAGES))).all()


class Careless(keras.Model):
    """Says nothing of its inputs, knows no `training`, and counts its batches whoever calls."""

    def __init__(self):
        super().__init__()
        self.norm = keras.layers.BatchNormalization()
        self.head = linear_student()

    def call(self, images):
        return self.head(self.norm(images, training=True))


def test_nothing_that_a_teacher_does_changes_it():
    teacher = Careless()
    with pytest.raises(ValueError, match="`teacher`. Expected a built keras.Model"):
        FrozenTeacher(teacher, linear_student())
    teacher(IMAGES)
    before = weights(teacher)
    frozen = FrozenTeacher(teacher, linear_student())
    assert np.isfinite(numpy(frozen.logits(5 * IMAGES))).all()
    assert_equal(weights(teacher), before)
    assert teacher.trainable
    teacher(5 * IMAGES)
    assert any((a != b).any() for a, b in zip(weights(teacher), before, strict=True))


def test_copies_are_renewed_when_told():
    teacher = conv_teacher()
    frozen = FrozenTeacher(teacher, linear_student())
    old = numpy(frozen.logits(IMAGES))
    teacher.set_weights([2 * w for w in teacher.get_weights()])
    np.testing.assert_array_equal(numpy(frozen.logits(IMAGES)), old)
    frozen.refresh()
    np.testing.assert_allclose(numpy(frozen.logits(IMAGES)), numpy(teacher(IMAGES)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_probabilities_are_not_taken_for_logits(activation):
    with pytest.raises(ValueError, match="Expected `teacher_from_logits=False`.*Received"):
        FrozenTeacher(conv_teacher(activation=activation), linear_student())


def test_teachers_that_cannot_take_the_images():
    with pytest.raises(ValueError, match="Expected `teacher_preprocessing`.*3 channels.*4"):
        FrozenTeacher(conv_teacher((6, 6, 4)), linear_student())
    with pytest.raises(ValueError, match="`teacher` to have one output. Received: 2"):
        FrozenTeacher(vit(distillation_token=True, return_both_heads=True), linear_student())
    with pytest.raises(ValueError, match="`teacher`. Expected a built keras.Model"):
        FrozenTeacher("BiT", linear_student())
