from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_vit.distillation import Distiller, HardDistillation, SoftDistillation
from keras_vit.training import fit
from tests import tiny
from tests.distillation.models import IMAGES, LABELS, conv_teacher, linear_student, numpy, weights
from tests.errors import refuses
from tests.tiny import assert_close

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
L2 = keras.regularizers.L2(0.01)


def deit(**changes):
    options = {"image_size": 6, "patch_size": 3, "num_layers": 1, "distillation_token": True}
    return tiny.build(**{**options, **changes})


def compiled(student, teacher=None, optimizer="sgd", loss=CROSS_ENTROPY, metrics=None, **options):
    distiller = Distiller(student, teacher or conv_teacher(), **options)
    distiller.compile(optimizer, loss, metrics=metrics)
    return distiller


def step(distiller, x=IMAGES, y=LABELS, **options):
    return distiller.train_on_batch(x, y, return_dict=True, **options)


@pytest.mark.every_backend
def test_fit_resized_images_trains_student_only():
    images = np.random.default_rng(0).normal(size=(8, 8, 5, 3)).astype("float32")
    student, teacher = linear_student((8, 5, 3)), conv_teacher()
    distiller = compiled(student, teacher, keras.optimizers.SGD(0.1))
    # `fit` copies the teacher again, which now prefers other classes.
    teacher.layers[-1].set_weights([-w for w in teacher.layers[-1].get_weights()])
    before, kernel = weights(teacher), student.layers[-1].get_weights()[0]
    logits = student(images)
    resized = keras.ops.image.resize(images, (6, 6), data_format="channels_last")
    expected = float(CROSS_ENTROPY(LABELS, logits)), float(HardDistillation()(teacher(resized), logits))
    history = distiller.fit(images, LABELS, validation_data=(images, LABELS), verbose=0).history
    assert (history["class_loss"][0], history["distillation_loss"][0]) == pytest.approx(expected, rel=1e-4)
    assert history["loss"][0] == pytest.approx(sum(expected) / 2, rel=1e-4)
    assert history["val_loss"][0] == pytest.approx(float(CROSS_ENTROPY(LABELS, student(images))), rel=1e-4)
    answers = np.eye(5)[LABELS] + np.eye(5)[numpy(teacher(resized)).argmax(axis=-1)]
    error = numpy(keras.ops.softmax(logits)) - answers / 2
    gradient = images.reshape(8, -1).T @ error / 8
    np.testing.assert_allclose(student.layers[-1].get_weights()[0], kernel - 0.1 * gradient, atol=1e-5)
    assert_close(weights(teacher), before)
    assert teacher.trainable and all(layer.trainable for layer in teacher.layers)


@pytest.mark.parametrize("kind, alpha", [("hard", 0.0), ("soft", 0.25), ("hard", 1.0)])
def test_each_head_learns_from_its_target(kind, alpha):
    student, teacher = deit(), conv_teacher()
    both = keras.Model(student.input, [student.get_layer(name).output for name in ("head", "head_dist")])
    first, second = both(IMAGES)
    distillation = HardDistillation() if kind == "hard" else SoftDistillation(2.0)
    expected = float(CROSS_ENTROPY(LABELS, first)), float(distillation(teacher(IMAGES), second))
    before = {name: student.get_layer(name).get_weights() for name in ("head", "head_dist")}
    logs = step(compiled(student, teacher, kind=kind, alpha=alpha, temperature=2.0))
    assert logs["loss"] == pytest.approx((1 - alpha) * expected[0] + alpha * expected[1], rel=1e-4)
    assert logs["distillation_loss"] == pytest.approx(expected[1], rel=1e-4)
    assert logs["class_loss"] == pytest.approx(expected[0] if alpha < 1 else 0.0, rel=1e-4)
    for name, learns in (("head", alpha < 1), ("head_dist", alpha > 0)):
        after = student.get_layer(name).get_weights()
        assert any((a != b).any() for a, b in zip(before[name], after, strict=True)) == learns, name
    accuracies = [(numpy(head).argmax(axis=-1) == LABELS).mean() for head in (first, second)]
    assert [logs["class_accuracy"], logs["distillation_accuracy"]] == pytest.approx(accuracies)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A saved run on images with one channel and another size than the teacher's."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(3).normal(size=(8, 6, 9, 1)).astype("float32")
    student, teacher = deit(image_size=(6, 9), in_channels=1, dropout_rate=0.1), conv_teacher()
    folder = tmp_path_factory.mktemp("saved")
    distiller = compiled(student, teacher, keras.optimizers.Adam(0.01), metrics=["accuracy"])
    history = distiller.fit(x, LABELS, batch_size=4, epochs=2, validation_data=(x, LABELS), verbose=0).history
    distiller.save(folder / "m.keras")
    distiller.save_weights(folder / "m.weights.h5")
    predicted = distiller.predict(x, verbose=0)
    return SimpleNamespace(**locals())


def test_training_and_evaluation_metrics(run):
    evaluation = {"loss", "accuracy", "class_accuracy", "distillation_accuracy"}
    training = evaluation | {"class_loss", "distillation_loss"}
    assert set(run.history) == training | {f"val_{name}" for name in evaluation}
    mean = np.mean([run.history["class_loss"], run.history["distillation_loss"]], axis=0)
    assert run.history["loss"] == pytest.approx(mean, rel=1e-4)


def test_predict_and_evaluate_use_only_the_student(run):
    evaluated = run.distiller.evaluate(run.x, LABELS, verbose=0, return_dict=True)
    np.testing.assert_allclose(run.predicted, numpy(run.student(run.x)), atol=1e-5)
    assert float(evaluated["accuracy"]) == pytest.approx((run.predicted.argmax(axis=-1) == LABELS).mean())
    assert float(evaluated["loss"]) == pytest.approx(float(CROSS_ENTROPY(LABELS, run.predicted)), rel=1e-4)


def test_files_contain_only_the_student(run):
    reloaded = keras.saving.load_model(run.folder / "m.keras")
    assert type(reloaded) is type(run.student)
    np.testing.assert_allclose(numpy(reloaded(run.x)), run.predicted, atol=1e-5)
    assert len(run.distiller.variables) == len(run.student.variables)
    # The weights file also contains the optimizer's state.
    again = compiled(deit(image_size=(6, 9), in_channels=1), conv_teacher(), keras.optimizers.Adam(0.01))
    again.optimizer.build(again.trainable_variables)
    again.load_weights(run.folder / "m.weights.h5")
    np.testing.assert_allclose(numpy(again(run.x)), run.predicted, atol=1e-5)
    assert int(again.optimizer.iterations) == 4
    h5py = pytest.importorskip("h5py")
    sizes = []
    with h5py.File(run.folder / "m.weights.h5") as file:
        file.visititems(lambda _, item: sizes.append(item.shape) if hasattr(item, "shape") else None)
    assert run.teacher.layers[0].kernel.shape not in sizes and run.student.get_layer("head").kernel.shape in sizes


def test_one_head_learns_from_labels_and_soft_teacher():
    student, teacher = linear_student(), conv_teacher(activation="softmax")
    logits, target = student(IMAGES), keras.ops.log(teacher(2 * IMAGES))
    expected = float(CROSS_ENTROPY(LABELS, logits)), float(SoftDistillation(3.0)(target, logits))
    options = {"teacher_from_logits": False, "teacher_preprocessing": lambda images: 2 * images}
    logs = step(compiled(student, teacher, kind="soft", **options))
    assert logs["loss"] == pytest.approx(sum(expected) / 2, rel=1e-4)
    assert set(logs) == {"loss", "class_loss", "distillation_loss"}


def test_student_with_custom_call():
    class Student(keras.Model):
        def call(self, inputs, training=None):
            return 0 * super().call(inputs, training=training)

    inner = linear_student()
    distiller = compiled(Student(inner.inputs, inner.outputs))
    assert distiller.evaluate(IMAGES, LABELS, verbose=0) == pytest.approx(np.log(5))
    assert step(distiller)["class_loss"] == pytest.approx(np.log(5))


def test_heads_are_found_by_the_outputs():
    images = keras.Input((6, 6, 3))
    hidden = keras.layers.Dense(5, name="head_dist")(keras.layers.Flatten()(images))
    misnamed = keras.Model(images, keras.layers.Dense(5, name="head")(hidden))
    for student in (misnamed, keras.Sequential([images, deit(), keras.layers.Dense(5)])):
        assert set(step(compiled(student))) == {"loss", "class_loss", "distillation_loss"}
    nested = keras.Sequential([images, keras.Sequential([images, deit()])])
    refuses("Pass the nested model", Distiller, nested, conv_teacher())


@pytest.mark.backends("jax")
def test_teacher_remains_after_an_error_in_the_first_step():
    def convert(images):
        if len(calls) == 1:
            raise RuntimeError("out of memory")
        return images

    teacher, calls = conv_teacher(), [1]
    distiller = compiled(linear_student(), teacher, teacher_preprocessing=convert)
    with pytest.raises(RuntimeError, match="out of memory"):
        distiller.fit(IMAGES, LABELS, verbose=0)
    calls.clear()
    expected = float(HardDistillation()(teacher(IMAGES), distiller.student(IMAGES)))
    assert step(distiller)["distillation_loss"] == pytest.approx(expected, rel=1e-4)


def test_student_that_returns_both_heads():
    student = deit(return_both_heads=True)
    distiller = compiled(student, metrics=["accuracy"])
    step(distiller)
    distiller.reset_metrics()
    first, second = student(IMAGES)
    answer = (numpy(first) + numpy(second)) / 2
    logs = distiller.test_on_batch(IMAGES, LABELS, return_dict=True)
    assert logs["loss"] == pytest.approx(float(CROSS_ENTROPY(LABELS, answer)), rel=1e-4)
    assert logs["accuracy"] == pytest.approx((answer.argmax(axis=-1) == LABELS).mean())
    assert len(distiller.predict_on_batch(IMAGES)) == 2


def test_mixed_labels_and_weighted_accuracy():
    one_hot = np.eye(5, dtype="float32")[LABELS]
    mixed = 0.6 * one_hot + 0.4 * np.roll(one_hot, 1, axis=0)
    student = deit()
    keras_loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    first = keras.Model(student.input, student.get_layer("head").output)(IMAGES)
    distiller = compiled(student, loss=keras_loss, metrics=["accuracy"])
    sample_weight = np.arange(8, dtype="float32")
    logs = step(distiller, y=mixed, sample_weight=sample_weight)
    assert logs["class_loss"] == pytest.approx(float(keras_loss(mixed, first, sample_weight)), rel=1e-4)
    correct = numpy(first).argmax(axis=-1) == LABELS
    assert logs["class_accuracy"] == pytest.approx(np.average(correct, weights=sample_weight))


def test_sample_weights_scale_both_losses():
    chosen = np.array([1, 0, 1, 0, 0, 1, 0, 0], "float32")
    few = chosen.astype(bool)
    logs = step(compiled(linear_student(kernel_initializer="ones")), sample_weight=chosen)
    alone = step(compiled(linear_student(kernel_initializer="ones")), IMAGES[few], LABELS[few])
    for name in ("loss", "class_loss", "distillation_loss"):
        assert logs[name] * 8 == pytest.approx(alone[name] * 3, rel=1e-4)


def test_loss_metrics_are_means_over_images():
    student, histories = linear_student(), []
    for size in (8, 5):
        distiller = compiled(student, optimizer=keras.optimizers.SGD(0.0))
        histories.append(distiller.fit(IMAGES, LABELS, batch_size=size, shuffle=False, verbose=0).history)
    for name in ("class_loss", "distillation_loss"):
        assert histories[1][name] == pytest.approx(histories[0][name], rel=1e-4)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_regularization_is_added_once(alpha):
    # Five classes have 6 * 6 * 3 weights each.
    logs = step(compiled(linear_student(kernel_initializer="ones", kernel_regularizer=L2), alpha=alpha))
    expected = (1 - alpha) * logs["class_loss"] + alpha * logs["distillation_loss"] + 5.4
    assert logs["loss"] == pytest.approx(expected, rel=1e-4)


def test_two_replicas_share_regularization():
    """Keras sums the gradients of replicas and takes the mean of their metrics."""
    student, teacher = linear_student(kernel_initializer="ones", kernel_regularizer=L2), conv_teacher()
    expected = float(HardDistillation()(teacher(IMAGES), student(IMAGES)))
    distiller = compiled(student, teacher, alpha=1.0)
    distiller.distribute_strategy = SimpleNamespace(num_replicas_in_sync=2)
    logs = step(distiller)
    assert (logs["loss"], logs["distillation_loss"]) == pytest.approx((expected + 2.7, 2 * expected), rel=1e-4)


def test_alpha_1_needs_no_labels_or_loss():
    distiller = compiled(linear_student(), None, keras.optimizers.Adam(0.05), loss=None, kind="soft", alpha=1.0)
    losses = distiller.fit(IMAGES, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]


def test_mixed_float16_scales_loss_and_keeps_pixels():
    with tiny.dtype_policy("mixed_float16"):
        student = deit(include_preprocessing=True)
        assert isinstance(compiled(student).optimizer, keras.optimizers.LossScaleOptimizer)
        # Keras' first scale is so large that it skips the first steps.
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=8.0)
        distiller = compiled(student, optimizer=optimizer)
    # A cast to float16 before the normalization would round these pixels.
    images = np.full((2, 6, 6, 3), 127.53, "float32")
    np.testing.assert_array_equal(numpy(distiller(images)), numpy(student(images)))
    before = student.get_weights()
    assert np.isfinite(list(step(distiller).values())).all()
    assert any((a != b).any() for a, b in zip(before, student.get_weights(), strict=True))


def test_resume_compares_teacher_without_storing_it(tmp_path):
    def train(teacher, epochs):
        distiller = compiled(linear_student(), teacher)
        fit(distiller, (IMAGES, LABELS), epochs, resume=tmp_path, batch_size=4, verbose=0)

    def seeded_teacher():
        # The seed of its dropout is compared too.
        keras.utils.set_random_seed(1)
        return conv_teacher()

    train(seeded_teacher(), 1)
    archive = np.load(max(tmp_path.glob("step_*")))
    # The arrays are the student's kernel and bias.
    assert sorted(name for name in archive.files if "/model/" in name) == ["arrays/model/00000", "arrays/model/00001"]
    train(seeded_teacher(), 2)
    other = seeded_teacher()
    other.set_weights([0.5 * w for w in other.get_weights()])
    refuses("another run: model.unsaved.*`allow=", train, other, 3)


def test_unsuitable_students_and_teachers():
    student, teacher = linear_student(), conv_teacher()
    refuses("the student's 5 classes. Received: 7", Distiller, student, conv_teacher(num_classes=7))
    named = [tiny.build(class_names=list(names)) for names in ("abcde", "edcba")]
    refuses("`teacher`. Expected `student`'s classes in the same order, .'a'.*Received: .'e'", Distiller, *named)
    inputs, both = keras.Input((6, 6, 3)), deit(return_both_heads=True)
    for wrong, message in (
        (linear_student(activation="softmax"), "`student` to return logits"),
        (deit(classifier_activation="softmax"), "`student` to return logits"),
        (linear_student(num_classes=1), "logits of two or more classes that exclude each other"),
        (deit(task="multi_label"), "logits of two or more classes that exclude each other"),
        (keras.Model(both.input, [keras.layers.Softmax()(x) for x in both.output]), "two heads that return logits"),
        (keras.Sequential([inputs, deit()]), "Pass the nested model"),
        (keras.Sequential([keras.layers.Dense(5)]), "`student`. Expected a functional or sequential"),
        (keras.Model(inputs, [student(inputs), student(inputs)]), "`student` to have one output.*Received: 2"),
    ):
        refuses(message, Distiller, wrong, teacher)
    refuses("save its `plain_model`", Distiller(student, teacher).get_config, error=NotImplementedError)
