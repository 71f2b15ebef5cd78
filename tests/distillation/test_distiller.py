import json
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_vit.distillation import Distiller, HardDistillation, SoftDistillation
from keras_vit.training import Resume
from tests import tiny
from tests.distillation import replicas
from tests.distillation.models import IMAGES, LABELS, assert_equal, conv_teacher, linear_student, weights

BACKEND = keras.backend.backend()
# TensorFlow takes longer to trace and compile than to train; two tests do.
QUICK = {"jit_compile": False, "run_eagerly": True} if BACKEND == "tensorflow" else {}
GRAPH = {"jit_compile": False} if BACKEND == "tensorflow" else {}
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
ONE_HOT = np.eye(5, dtype="float32")[LABELS]


def deit(**changes):
    options = {"image_size": 6, "patch_size": 3, "num_layers": 1, "distillation_token": True}
    return tiny.build(**{**options, **changes})


def compiled(student, teacher=None, optimizer="sgd", loss=CROSS_ENTROPY, metrics=None, compile=QUICK, **options):
    distiller = Distiller(student, teacher or conv_teacher(), **options)
    distiller.compile(optimizer, loss, metrics=metrics, **compile)
    return distiller


def step(distiller, x=IMAGES, y=LABELS, **options):
    return distiller.train_on_batch(x, y, return_dict=True, **options)


def numpy(x):
    return keras.ops.convert_to_numpy(x)


@pytest.mark.parametrize(("kind", "alpha"), [("hard", 0.0), ("soft", 0.25), ("hard", 1.0)])
def test_each_head_learns_from_its_own(kind, alpha):
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
def trained(tmp_path_factory):
    """A run on images of one channel and another size than the teacher's, saved in each way."""
    keras.utils.set_random_seed(0)
    x, y = np.random.default_rng(3).normal(size=(8, 6, 9, 1)).astype("float32"), LABELS
    student, teacher = deit(image_size=(6, 9), in_channels=1, dropout_rate=0.1), conv_teacher()
    before = weights(teacher)
    distiller = compiled(student, teacher, keras.optimizers.Adam(0.01), metrics=["accuracy"], compile=GRAPH)
    history = distiller.fit(x, y, batch_size=4, epochs=2, validation_data=(x, y), verbose=0).history
    folder = tmp_path_factory.mktemp("saved")
    distiller.save(folder / "m.keras")
    distiller.save_weights(folder / "m.weights.h5")
    predicted, evaluated = distiller.predict(x, verbose=0), distiller.evaluate(x, y, verbose=0, return_dict=True)
    return student, teacher, before, history, folder, x, y, predicted, evaluated, len(distiller.variables)


def test_the_teacher_is_left_as_it_was(trained):
    teacher, before = trained[1:3]
    assert_equal(weights(teacher), before)
    assert teacher.trainable and all(layer.trainable for layer in teacher.layers)


def test_metrics_of_training_and_evaluation(trained):
    evaluation = {"loss", "accuracy", "class_accuracy", "distillation_accuracy"}
    training = evaluation | {"class_loss", "distillation_loss"}
    assert set(trained[3]) == training | {f"val_{name}" for name in evaluation}
    assert trained[3]["loss"] == pytest.approx(
        np.mean([trained[3]["class_loss"], trained[3]["distillation_loss"]], axis=0), rel=1e-4
    )


def test_it_answers_as_the_student_does(trained):
    student, _, _, _, _, x, y, predicted, evaluated, _ = trained
    np.testing.assert_allclose(predicted, numpy(student(x)), atol=1e-5)
    assert float(evaluated["accuracy"]) == pytest.approx((predicted.argmax(axis=-1) == y).mean())
    assert float(evaluated["loss"]) == pytest.approx(float(CROSS_ENTROPY(y, predicted)), rel=1e-4)


def test_files_hold_the_student_alone(trained):
    student, teacher, _, _, folder, x, _, predicted, _, num_variables = trained
    reloaded = keras.saving.load_model(folder / "m.keras")
    assert type(reloaded) is type(student)
    np.testing.assert_allclose(numpy(reloaded(x)), predicted, atol=1e-5)
    assert num_variables == len(student.variables)
    # The state of a run: the student's weights and the optimizer's.
    again = compiled(deit(image_size=(6, 9), in_channels=1), conv_teacher(), keras.optimizers.Adam(0.01))
    again.optimizer.build(again.trainable_variables)
    again.load_weights(folder / "m.weights.h5")
    np.testing.assert_allclose(numpy(again(x)), predicted, atol=1e-5)
    assert int(again.optimizer.iterations) == 4
    h5py = pytest.importorskip("h5py")
    sizes = []
    with h5py.File(folder / "m.weights.h5") as file:
        file.visititems(lambda _, item: sizes.append(item.shape) if hasattr(item, "shape") else None)
    assert teacher.layers[0].kernel.shape not in sizes and student.get_layer("head").kernel.shape in sizes


def test_a_plain_student_learns_from_both_by_one_head():
    for kind in ("hard", "soft"):
        student, teacher = linear_student(), conv_teacher()
        answer = student(IMAGES)
        distillation = HardDistillation() if kind == "hard" else SoftDistillation(3.0)
        expected = (float(CROSS_ENTROPY(LABELS, answer)) + float(distillation(teacher(IMAGES), answer))) / 2
        logs = step(compiled(student, teacher, kind=kind))
        assert logs["loss"] == pytest.approx(expected, rel=1e-4)
        assert set(logs) == {"loss", "class_loss", "distillation_loss"}


def test_a_student_with_a_call_of_its_own():
    class Student(keras.Model):
        def call(self, inputs, training=None):
            return 0 * super().call(inputs, training=training)

    inner = linear_student()
    distiller = compiled(Student(inner.inputs, inner.outputs))
    assert distiller.evaluate(IMAGES, LABELS, verbose=0) == pytest.approx(np.log(5))
    assert step(distiller)["class_loss"] == pytest.approx(np.log(5))


def test_a_student_that_returns_both_heads():
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


def test_mixed_labels():
    mixed = 0.6 * ONE_HOT + 0.4 * np.roll(ONE_HOT, 1, axis=0)
    student = deit()
    keras_loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    first = keras.Model(student.input, student.get_layer("head").output)(IMAGES)
    distiller = compiled(student, loss=keras_loss, metrics=["accuracy"])
    logs = step(distiller, y=mixed)
    assert logs["class_loss"] == pytest.approx(float(keras_loss(mixed, first)), rel=1e-4)
    assert logs["class_accuracy"] == pytest.approx((numpy(first).argmax(axis=-1) == LABELS).mean())


def test_sample_weights_weigh_both_losses():
    chosen = np.array([1, 0, 1, 0, 0, 1, 0, 0], "float32")
    few = chosen.astype(bool)
    logs = step(compiled(linear_student(kernel_initializer="ones")), sample_weight=chosen)
    alone = step(compiled(linear_student(kernel_initializer="ones")), IMAGES[few], LABELS[few])
    for name in ("loss", "class_loss", "distillation_loss"):
        assert logs[name] * 8 == pytest.approx(alone[name] * 3, rel=1e-4)


def test_regularization_counts_once():
    for alpha in (0.5, 1.0):
        # 6 * 6 * 3 weights of each of 5 classes.
        student = linear_student(kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.01))
        logs = step(compiled(student, alpha=alpha))
        expected = (1 - alpha) * logs["class_loss"] + alpha * logs["distillation_loss"] + 5.4
        assert logs["loss"] == pytest.approx(expected, rel=1e-4)


def test_the_teacher_alone_needs_no_labels():
    student, teacher = linear_student(), conv_teacher()
    distiller = compiled(student, teacher, keras.optimizers.Adam(0.05), loss=None, kind="soft", alpha=1.0)
    losses = distiller.fit(IMAGES, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]


def test_a_student_may_be_its_own_teacher():
    student = linear_student()
    logs = [step(d) for d in [compiled(student, student, kind="soft")] for _ in range(2)]
    assert logs[0]["distillation_loss"] == pytest.approx(0.0, abs=1e-6) and logs[1]["distillation_loss"] > 1e-7


def test_an_interrupted_run_leaves_the_teacher_whole():
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    teacher = conv_teacher()
    before = weights(teacher)
    with pytest.raises(KeyboardInterrupt):
        compiled(linear_student(), teacher).fit(IMAGES, LABELS, verbose=0, callbacks=[Interrupt()])
    assert_equal(weights(teacher), before)


def test_compiled_by_xla_with_resized_images():
    distiller = compiled(linear_student((8, 5, 3)), compile={"jit_compile": BACKEND != "torch"})
    images = np.random.default_rng(0).normal(size=(8, 8, 5, 3)).astype("float32")
    assert np.isfinite(distiller.fit(images, LABELS, verbose=0).history["loss"]).all()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy):
    keras.config.set_dtype_policy(policy)
    try:
        student = deit(include_preprocessing=True)
        distiller = compiled(student)
        scaled = isinstance(distiller.optimizer, keras.optimizers.LossScaleOptimizer)
        if scaled:
            # Keras' first scale is so large that the first steps are left out.
            optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=8.0)
            distiller = compiled(student, optimizer=optimizer)
    finally:
        keras.config.set_dtype_policy("float32")
    assert scaled == (policy == "mixed_float16")
    # In float16 and bfloat16 pixels would be rounded before they are centred.
    images = np.full((2, 6, 6, 3), 127.53, "float32")
    np.testing.assert_array_equal(numpy(distiller(images)), numpy(student(images)))
    before = student.get_weights()
    logs = step(distiller)
    assert np.isfinite(list(logs.values())).all()
    assert any((a != b).any() for a, b in zip(before, student.get_weights(), strict=True))


def test_resume(tmp_path):
    def run(folder, epochs):
        keras.utils.set_random_seed(1)
        optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)
        distiller = compiled(linear_student(), conv_teacher(), optimizer)
        resume = Resume(tmp_path / folder, every=2)
        history = distiller.fit(IMAGES, LABELS, batch_size=2, epochs=epochs, verbose=0, callbacks=[resume]).history
        return weights(distiller), history

    alone, history = run("alone", 3)
    run("parted", 1)
    resumed, again = run("parted", 3)
    assert_equal(alone, resumed)
    assert history == again
    archive = np.load(max((tmp_path / "parted").iterdir()))
    other = conv_teacher()
    other.set_weights([0.5 * w for w in other.get_weights()])
    with pytest.raises(ValueError, match="another run: model.unsaved.*`allow="):
        distiller = compiled(linear_student(), other, keras.optimizers.Adam(0.01, gradient_accumulation_steps=2))
        distiller.fit(IMAGES, LABELS, batch_size=2, epochs=4, verbose=0, callbacks=[Resume(tmp_path / "parted")])
    # The student's kernel and bias, and no weight of the teacher.
    assert sorted(name for name in archive.files if "/model/" in name) == ["arrays/model/00000", "arrays/model/00001"]


def test_bad_arguments():
    student, teacher = linear_student(), conv_teacher()
    for name, value in (("kind", "warm"), ("alpha", 1.1), ("alpha", -0.1), ("alpha", "half"), ("temperature", 0)):
        with pytest.raises(ValueError, match=f"`{name}`.*Expected.*Received"):
            Distiller(student, teacher, **{name: value})
    with pytest.raises(ValueError, match="the student's 5 classes. Received: 7"):
        Distiller(student, conv_teacher(num_classes=7))
    with pytest.raises(ValueError, match="`student` to give logits"):
        Distiller(linear_student(activation="softmax"), teacher)
    with pytest.raises(ValueError, match="`student` to give logits"):
        Distiller(deit(classifier_activation="softmax"), teacher)
    with pytest.raises(ValueError, match="not a model nested in it"):
        Distiller(keras.Sequential([keras.Input((6, 6, 3)), deit()]), teacher)
    with pytest.raises(ValueError, match="`student`. Expected a functional or sequential"):
        Distiller(keras.Sequential([keras.layers.Dense(5)]), teacher)
    inputs = keras.Input((6, 6, 3))
    with pytest.raises(ValueError, match="`student` to have one output. Received: 2"):
        Distiller(keras.Model(inputs, [student(inputs), student(inputs)]), teacher)
    with pytest.raises(NotImplementedError, match="save its `plain_model`"):
        Distiller(student, teacher).get_config()


@pytest.mark.backends("tensorflow")
def test_two_replicas_train_as_one_does():
    command = [sys.executable, "-m", "tests.distillation.replicas"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found, expected = json.loads(result.stdout.splitlines()[-1]), replicas.train()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
