import functools

import keras
import numpy as np
import pytest

from keras_vit import data
from keras_vit.semi_supervised import noisy_student, pseudo_labels
from keras_vit.training import SAM, Resume, fit
from tests import tiny
from tests.distillation.models import assert_equal, weights

tf = pytest.importorskip("tensorflow", reason="the batches are tf.data")

RNG = np.random.default_rng(0)
LABELLED, LABELS = RNG.normal(size=(4, 6)).astype("float32"), np.array([0, 1, 2, 1])
UNLABELLED = RNG.normal(size=(10, 6)).astype("float32")
LOSS = keras.losses.CategoricalCrossentropy(from_logits=True)


def linear(noise=0.0):
    layers = [keras.layers.Dropout(noise)] if noise else []
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])


def batches(x, y, size):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size)


def joint(soft, ratio=1.0, size=10, labels=LABELS):
    pseudo = batches(UNLABELLED, soft, size)
    return data.with_pseudo_labels(batches(LABELLED, labels, 4).repeat(), pseudo, num_classes=3, ratio=ratio)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("ratio", [1.0, 3.5])
def test_fit_minimizes_the_written_loss(ratio):
    student = linear()
    kernel, bias = (w.astype("float64") for w in student.get_weights())
    soft = RNG.dirichlet(np.ones(3), size=10).astype("float32")
    targets = np.eye(3)[LABELS] * 0.9 + 0.1 / 3
    loss, gradient = 0.0, 0.0
    for x, y, scale in ((LABELLED, targets, 1.0), (UNLABELLED, soft, ratio)):
        logs = log_softmax(x @ kernel + bias)
        loss += scale * -(y * logs).sum(axis=1).mean()
        gradient = gradient + scale * x.T @ (np.exp(logs) - y) / len(x)
    student.compile(keras.optimizers.SGD(0.5), LOSS)
    history = student.fit(joint(soft, ratio), verbose=0).history
    assert history["loss"][0] == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(student.get_weights()[0], kernel - 0.5 * gradient, atol=1e-5)


def test_one_hot_labels_of_the_teacher_are_hard_ones_without_smoothing():
    classes = RNG.integers(3, size=10)
    losses = []
    for pseudo in (np.eye(3, dtype="float32")[classes], classes):
        unsmoothed = data.with_pseudo_labels(
            batches(LABELLED, LABELS, 4), batches(UNLABELLED, pseudo, 10), num_classes=3, label_smoothing=0.0
        )
        keras.utils.set_random_seed(1)
        student = linear()
        student.compile("sgd", LOSS)
        losses.append(student.evaluate(unsmoothed, verbose=0))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def train(student, labels, checkpoints, callbacks=(), trainer=lambda model: model):
    trained = trainer(student)
    trained.compile(keras.optimizers.Adam(0.05), LOSS, jit_compile=False)
    chosen = batches(UNLABELLED[labels.indices], labels.labels, 4)

    def epoch(number):
        shuffled = chosen.unbatch().shuffle(20).batch(4)
        return data.with_pseudo_labels(batches(LABELLED, LABELS, 4).repeat(), shuffled, num_classes=3, ratio=2.0)

    fit(trained, epoch, 3, resume=Resume(checkpoints, every=2), callbacks=list(callbacks), verbose=0)


def run(folder, train=train, rounds=2, teacher=None, **options):
    keras.utils.set_random_seed(7)
    students = [functools.partial(linear, 0.3)] * rounds
    options = {"threshold": 0.0, "per_class": 4, **options}
    return noisy_student(teacher or linear(), students, UNLABELLED, train, folder, **options)


def test_a_killed_run_ends_as_if_left_alone(tmp_path):
    alone = run(tmp_path / "alone")
    calls = []

    def killed(student, labels, checkpoints, at):
        calls.append(checkpoints.parent.name)
        # The second time in a later round, after the first step of a new one, and between checkpoints.
        train(student, labels, checkpoints, [tiny.Kill(at)])

    for at, rounds in ((5, ["round_1"]), (8, ["round_1", "round_2"]), (10**6, ["round_2"])):
        calls.clear()
        interrupted = functools.partial(killed, at=at)
        if at < 10**6:
            with pytest.raises(KeyboardInterrupt):
                run(tmp_path / "parted", interrupted)
        else:
            assert_equal(weights(run(tmp_path / "parted", interrupted)), weights(alone))
        assert calls == rounds
    # Nothing is left to train.
    calls.clear()
    again = run(tmp_path / "parted", interrupted)
    assert not calls
    assert_equal(again.get_weights(), alone.get_weights())


def test_each_student_is_the_next_teacher_and_no_teacher_is_trained(tmp_path):
    teachers, before = [linear()], []

    def watched(student, labels, checkpoints):
        before.append(weights(teachers[-1]))
        expected = pseudo_labels(teachers[-1], UNLABELLED, threshold=0.0, per_class=4)
        assert expected.teacher["sha256"] == labels.teacher["sha256"]
        np.testing.assert_allclose(labels.labels, expected.labels, atol=1e-6)
        train(student, labels, checkpoints)
        assert_equal(weights(teachers[-1]), before[-1])
        teachers.append(student)

    assert run(tmp_path, watched, rounds=3, teacher=teachers[0]) is teachers[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round_1", "round_2", "round_3"]
    assert sorted(path.name for path in (tmp_path / "round_3").iterdir()) == [
        "checkpoints",
        "pseudo_labels.npz",
        "student.keras",
    ]


def test_a_wrapper_trains_the_student(tmp_path):
    student = run(tmp_path, functools.partial(train, trainer=SAM), rounds=1)
    assert student.layers[-1].units == 3 and (tmp_path / "round_1" / "student.keras").exists()


def test_another_run_is_refused(tmp_path):
    run(tmp_path, lambda *_: None, rounds=1)
    with pytest.raises(ValueError, match="with another per_class.*another `folder`"):
        run(tmp_path, rounds=1, per_class=3)
    with pytest.raises(ValueError, match="with another kind"):
        run(tmp_path, rounds=1, kind="hard")
    with pytest.raises(ValueError, match="with another sha256"):
        run(tmp_path, rounds=1, teacher=linear())
    (tmp_path / "round_1" / "pseudo_labels.npz").write_bytes(b"")
    with pytest.raises(ValueError, match="Cannot read the pseudo labels"):
        run(tmp_path, rounds=1)
