import operator

import keras
import numpy as np
import pytest

from keras_vit.semi_supervised import MetaPseudoLabels
from keras_vit.training import SGD, AdamW, fit
from tests import tiny
from tests.distillation.models import numpy
from tests.errors import refuses
from tests.tiny import assert_close

# TensorFlow takes longer to compile a step than to run it.
JIT = keras.backend.backend() == "jax"
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(4, 3)).astype("float32"), np.array([0, 1, 2, 1])
CLEAN, AUGMENTED = RNG.normal(size=(2, 6, 3)).astype("float32")
ONE_HOT = np.eye(3)[Y]


def linear(scale=1.0, seed=0):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    rng = np.random.default_rng(seed)
    model.set_weights([scale * rng.normal(size=w.shape) for w in model.get_weights()])
    return model


def trainer_of(teacher, student, rate=0.5, teacher_rate=1.0, **options):
    trainer = MetaPseudoLabels(teacher, student, **{"uda_weight": 0.0, "seed": 0, **options})
    trainer.compile(keras.optimizers.SGD(rate), keras.optimizers.SGD(teacher_rate), jit_compile=JIT)
    return trainer


def step(trainer, clean=CLEAN, augmented=AUGMENTED):
    return {k: float(v) for k, v in trainer.train_on_batch((X, clean, augmented), Y, return_dict=True).items()}


def double(model):
    return [w.astype("float64") for w in model.get_weights()]


def probabilities(x, kernel, bias):
    exponentials = np.exp(x @ kernel + bias)
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def loss(x, targets, weights):
    return -(targets * np.log(probabilities(x, *weights))).sum(axis=1).mean()


def gradient(x, targets, weights):
    error = (probabilities(x, *weights) - targets) / len(x)
    return [x.T @ error, error.sum(axis=0)]


def test_feedback_is_the_decrease_of_the_labelled_loss():
    # The logits are so large that only one label can be drawn.
    teacher, student = linear(scale=100), linear(seed=1)
    start = double(student)
    drawn = np.eye(3)[(AUGMENTED @ teacher.get_weights()[0] + teacher.get_weights()[1]).argmax(axis=1)]
    after = [w - 0.5 * g for w, g in zip(start, gradient(AUGMENTED, drawn, start), strict=True)]
    logs = step(trainer_of(teacher, student))
    assert_close(student.get_weights(), after, atol=1e-5)
    assert logs["feedback"] == pytest.approx(loss(X, ONE_HOT, start) - loss(X, ONE_HOT, after), abs=1e-6)
    assert logs["loss"] == pytest.approx(loss(AUGMENTED, drawn, start), rel=1e-5)


@pytest.mark.every_backend
def test_training_step_moves_student_and_teacher():
    teacher, student = linear(), linear(seed=1)
    weights, before = double(teacher), double(student)
    logs = step(trainer_of(teacher, student, label_smoothing=0.3), CLEAN[:1], AUGMENTED[:1])
    # The drawn label follows from the student's step.
    bias = (before[1] - student.get_weights()[1]) / 0.5
    drawn = np.eye(3)[[(probabilities(AUGMENTED[:1], *before)[0] - bias).argmax()]]
    feedback = loss(X, ONE_HOT, before) - loss(X, ONE_HOT, double(student))
    supervised = gradient(X, ONE_HOT * 0.7 + 0.1, weights)
    meta = gradient(AUGMENTED[:1], drawn, weights)
    expected = [w - g - feedback * m for w, g, m in zip(weights, supervised, meta, strict=True)]
    assert abs(feedback) > 1e-3
    assert_close(teacher.get_weights(), expected, atol=1e-5)
    total = loss(X, ONE_HOT * 0.7 + 0.1, weights) + feedback * loss(AUGMENTED[:1], drawn, weights)
    assert logs["teacher_loss"] == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("uda_steps, growths", [(2, (0.0, 0.5, 1.0, 1.0)), (0, (1.0,))])
def test_teacher_learns_from_labels_and_uda_without_feedback(uda_steps, growths):
    teacher, student = linear(), linear(seed=1)
    options = {"label_smoothing": 0.1, "uda_weight": 2.0, "uda_temperature": 0.5, "uda_threshold": 0.8}
    trainer = trainer_of(teacher, student, 0.0, 0.5, uda_steps=uda_steps, **options)
    weights = double(teacher)
    for growth in growths:
        logits = np.log(probabilities(CLEAN, *weights)) / 0.5
        target = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        sure = target.max(axis=1, keepdims=True) >= 0.8
        assert 0 < sure.sum() < 6
        uda = -(sure * target * np.log(probabilities(AUGMENTED, *weights))).sum(axis=1).mean()
        error = sure * (probabilities(AUGMENTED, *weights) - target) / 6
        supervised = gradient(X, ONE_HOT * 0.9 + 0.1 / 3, weights)
        trainer.reset_metrics()
        logs = step(trainer)
        assert (logs["feedback"], logs["uda_loss"]) == pytest.approx((0.0, uda), rel=1e-4, abs=1e-6)
        parts = zip(weights, supervised, [AUGMENTED.T @ error, error.sum(axis=0)], strict=True)
        weights = [w - 0.5 * (g + 2 * growth * u) for w, g, u in parts]
        assert_close(teacher.get_weights(), weights, atol=1e-5)


def test_baseline_is_subtracted_from_feedback():
    plain, reduced = ([], [])
    for found, baseline in ((plain, False), (reduced, True)):
        trainer = trainer_of(linear(scale=100), linear(seed=1), teacher_rate=0.0, baseline=baseline)
        for _ in range(2):
            trainer.reset_metrics()
            found.append(step(trainer)["feedback"])
    expected = [0.99 * plain[0], plain[1] - (0.99 * 0.01 * plain[0] + 0.01 * plain[1])]
    assert reduced == pytest.approx(expected, rel=1e-4)


def test_labels_and_feedback_are_computed_in_inference_mode():
    teacher, student = (
        keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(3)]) for _ in range(2)
    )
    teacher.set_weights(linear(scale=1000).get_weights())
    before = student.get_weights()[1]
    many = np.ones((200, 3), "float32")
    label = numpy(teacher(many[:1])).argmax()
    assert step(trainer_of(teacher, student, 0.0, 0.0), many, many)["feedback"] == 0
    step(trainer_of(teacher, student, 1.0, 0.0), many, many)
    assert [i for i in range(3) if student.get_weights()[1][i] > before[i]] == [label]


def test_regularizers_of_the_teacher_are_added():
    plain, regularized = linear(scale=100), linear(scale=100)
    regularized.layers[-1].kernel.regularizer = keras.regularizers.L2(0.01)
    losses = [step(trainer_of(teacher, linear(seed=1)))["teacher_loss"] for teacher in (plain, regularized)]
    added = 0.01 * (linear(scale=100).get_weights()[0] ** 2).sum()
    assert losses[1] - losses[0] == pytest.approx(added, rel=1e-3)


def test_labels_are_drawn_with_the_teachers_probabilities():
    teacher, student = linear(scale=0.0), linear(seed=1)
    teacher.layers[-1].bias.assign(np.log([0.6, 0.3, 0.1]))
    before, rate = double(student), 1.0
    many = np.zeros((2000, 3), "float32")
    step(trainer_of(teacher, student, rate), many, many)
    share = probabilities(many[:1], *before)[0] - (before[1] - student.get_weights()[1]) / rate
    np.testing.assert_allclose(share, [0.6, 0.3, 0.1], atol=0.04)


def trained(folder=None, callbacks=(), epochs=2, rate=0.1, **changes):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(5, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(3)]
    teacher = keras.Sequential([keras.Input((3,)), *layers])
    changes = {"uda_steps": 4, "baseline": True, "seed": 1, **changes}
    trainer = MetaPseudoLabels(teacher, keras.models.clone_model(teacher), **changes)
    trainer.compile(AdamW(0.05), SGD(rate), metrics=["accuracy"])
    x = (np.tile(X, (3, 1)), np.concatenate([CLEAN] * 2), np.concatenate([AUGMENTED] * 2))
    if folder:
        options = {"resume": folder, "save_every": 2, "callbacks": callbacks}
        history = fit(trainer, (x, np.tile(Y, 3)), epochs, batch_size=4, verbose=0, **options)
    else:
        history = trainer.fit(x, np.tile(Y, 3), batch_size=4, epochs=epochs, verbose=0)
    return trainer, history.history


def test_killed_run_resumes_to_the_same_result(tmp_path):
    alone, expected = trained(tmp_path / "alone")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parted", [tiny.Kill(5)])
    parted, history = trained(tmp_path / "parted")
    assert history == expected
    for first, second in ((parted, alone), (parted.optimizer, alone.optimizer)):
        assert_close(first.variables, second.variables)
    assert int(parted.teacher_optimizer.iterations) == 6
    refuses("another run: optimizer.teacher.rate 0.1.* and not 0.2", trained, tmp_path / "parted", rate=0.2)
    refuses("another run: model.uda_weight 8.0 and not 1.0", trained, tmp_path / "parted", uda_weight=1.0)


def test_model_file_is_the_student_weights_file_is_the_run(tmp_path):
    trainer, _ = trained()
    assert trainer.plain_model is trainer.student
    trainer.save(tmp_path / "m.keras")
    student = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(student.predict(X, verbose=0), trainer.predict(X, verbose=0), atol=1e-6)
    trainer.save_weights(tmp_path / "m.weights.h5")
    again, _ = trained(epochs=1)
    again.load_weights(tmp_path / "m.weights.h5")
    for part in ("student.weights", "teacher.weights", "optimizer.variables", "teacher_optimizer.variables"):
        assert_close(*(operator.attrgetter(part)(each) for each in (again, trainer)))
    assert_close([again.baseline, again.seed_generator.state], [trainer.baseline, trainer.seed_generator.state])
    assert int(again.teacher_optimizer.iterations) == int(again.optimizer.iterations) == 6


def test_vit_is_trained_and_evaluated():
    images, labels = RNG.normal(size=(8, 16, 16, 3)).astype("float32"), np.arange(8) % 5
    teacher, student = tiny.build(num_layers=1, drop_path_rate=0.1), tiny.build(num_layers=1, dropout_rate=0.1)
    before = [model.get_weights() for model in (teacher, student)]
    trainer = MetaPseudoLabels(teacher, student, uda_threshold=0.0, uda_steps=0)
    trainer.compile(SGD(0.1), SGD(0.1), metrics=["accuracy"])
    history = trainer.fit((images, images, images[:, ::-1]), labels, verbose=0, validation_data=(images, labels))
    assert set(history.history) == {
        *("loss", "accuracy", "teacher_loss", "supervised_loss", "uda_loss", "feedback", "val_loss", "val_accuracy")
    }
    for weights, model in zip(before, (teacher, student), strict=True):
        assert any((a != b).any() for a, b in zip(weights, model.get_weights(), strict=True))


def test_bad_arguments_models_batches_and_optimizers():
    model = linear()
    for name in ("label_smoothing", "uda_threshold"):
        refuses(rf"`{name}`.*\[0, 1\)", MetaPseudoLabels, model, linear(), **{name: 1.0})
    refuses("`student`.*a separate model", MetaPseudoLabels, model, model)
    two, probable = (keras.Sequential([keras.Input((3,)), keras.layers.Dense(*o)]) for o in ((2,), (3, "softmax")))
    refuses("`student`.*the teacher's 3 classes", MetaPseudoLabels, model, two)
    refuses("`teacher`.*returns logits", MetaPseudoLabels, probable, model)
    named = [tiny.build(class_names=list(names)) for names in ("abcde", "edcba")]
    refuses("`teacher`. Expected `student`'s classes in the same order, .'e'.*Received: .'a'", MetaPseudoLabels, *named)
    trainer = trainer_of(model, linear(seed=1))
    for x, y in (((X, X, X), ONE_HOT), (X, Y), ((X, X), Y), ((X, X, X), ONE_HOT)):
        refuses(r"\(\(images, unlabelled, augmented\), labels\)", trainer.train_on_batch, x, y)
    optimizer = keras.optimizers.SGD()
    refuses("`teacher_optimizer`.*another optimizer", trainer.compile, optimizer, optimizer)
