import functools

import keras
import numpy as np
import pytest
from scipy.special import log_softmax

from keras_vit import data
from keras_vit.semi_supervised import PseudoLabels, noisy_student, pseudo_labels
from keras_vit.training import fit
from tests import tiny
from tests.distillation.models import weights
from tests.errors import refuses
from tests.tiny import assert_close

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


@pytest.mark.every_backend
def test_student_step_minimizes_the_weighted_loss():
    student, ratio = linear(), 3.5
    kernel, bias = (w.astype("float64") for w in student.get_weights())
    soft = RNG.dirichlet(np.ones(3), size=10).astype("float32")
    targets = np.eye(3)[LABELS] * 0.9 + 0.1 / 3
    loss, gradient = 0.0, 0.0
    for x, y, scale in ((LABELLED, targets, 1.0), (UNLABELLED, soft, ratio)):
        logs = log_softmax(x @ kernel + bias, axis=1)
        loss += scale * -(y * logs).sum(axis=1).mean()
        gradient = gradient + scale * x.T @ (np.exp(logs) - y) / len(x)
    student.compile(keras.optimizers.SGD(0.5), LOSS, jit_compile=keras.backend.backend() == "jax")
    labelled, pseudo = batches(LABELLED, LABELS, 4).repeat(), batches(UNLABELLED, soft, 10)
    joint = data.with_pseudo_labels(labelled, pseudo, num_classes=3, ratio=ratio)
    assert student.fit(joint, verbose=0).history["loss"][0] == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(student.get_weights()[0], kernel - 0.5 * gradient, atol=1e-5)


def train(student, labels, checkpoints, callbacks=()):
    student.compile(keras.optimizers.Adam(0.05), LOSS)
    chosen = batches(UNLABELLED[labels.indices], labels.labels, 4)

    def epoch(number):
        shuffled = chosen.unbatch().shuffle(20).batch(4)
        return data.with_pseudo_labels(batches(LABELLED, LABELS, 4).repeat(), shuffled, num_classes=3, ratio=2.0)

    fit(student, epoch, 2, resume=checkpoints, save_every=2, callbacks=list(callbacks), verbose=0)


def run(folder, train=train, rounds=2, teacher=None, images=UNLABELLED, **options):
    keras.utils.set_random_seed(7)
    students = [functools.partial(linear, 0.3)] * rounds
    options = {"threshold": 0.0, "per_class": 4, **options}
    return noisy_student(teacher or linear(), students, images, train, folder, **options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of a run without an interruption, and its models from the first teacher to the last student."""
    folder, models = tmp_path_factory.mktemp("alone"), [linear()]

    def kept(student, labels, checkpoints):
        train(student, labels, checkpoints)
        models.append(student)

    assert run(folder, kept, teacher=models[0]) is models[-1]
    return folder, models


def test_each_student_becomes_the_next_frozen_teacher(alone):
    folder, models = alone
    assert sorted(path.name for path in folder.iterdir()) == ["round_1", "round_2"]
    for place, teacher in zip(sorted(folder.iterdir()), models[:-1], strict=True):
        assert sorted(path.name for path in place.iterdir()) == ["checkpoints", "pseudo_labels.npz", "student.keras"]
        labels = PseudoLabels.load(place / "pseudo_labels.npz")
        expected = pseudo_labels(teacher, UNLABELLED, threshold=0.0, per_class=4)
        assert expected.teacher["sha256"] == labels.teacher["sha256"]
        np.testing.assert_allclose(labels.labels, expected.labels, atol=1e-6)


def test_killed_run_resumes_to_the_same_student(tmp_path, alone):
    (teacher, _, expected), calls = alone[1], []

    def killed(student, labels, checkpoints, at):
        calls.append(checkpoints.parent.name)
        train(student, labels, checkpoints, [tiny.Kill(at)])

    # A round has 6 steps, with a checkpoint after each second one.
    for at, rounds in ((3, ["round_1"]), (5, ["round_1", "round_2"]), (10**6, ["round_2"])):
        calls.clear()
        interrupted = functools.partial(killed, at=at)
        if at < 10**6:
            with pytest.raises(KeyboardInterrupt):
                run(tmp_path, interrupted, teacher=teacher)
        else:
            assert_close(weights(run(tmp_path, interrupted, teacher=teacher)), weights(expected))
        assert calls == rounds
    # The finished run trains nothing.
    calls.clear()
    again = run(tmp_path, interrupted, teacher=teacher)
    assert not calls
    assert_close(again.get_weights(), expected.get_weights())


def test_seed_determines_each_new_student(tmp_path):
    students = []

    def new(folder, **options):
        students.clear()
        run(tmp_path / folder, lambda student, *_: students.append(student.get_weights()[0]), **options)
        return list(students)

    first, again, other = new("first"), new("again", teacher=linear()), new("other", seed=1)
    assert_close(first, again)
    assert len({kernel.tobytes() for kernel in first + other}) == 4


def test_folder_of_another_run_is_refused(tmp_path):
    run(tmp_path, lambda *_: None, rounds=1)
    refuses("differs in per_class.*another `folder`", run, tmp_path, rounds=1, per_class=3)
    refuses("differs in kind", run, tmp_path, rounds=1, kind="hard")
    refuses("differs in sha256", run, tmp_path, rounds=1, teacher=linear())
    refuses("differs in seed", run, tmp_path, rounds=1, seed=1)
    run(tmp_path / "batches", lambda *_: None, rounds=1, images=[UNLABELLED])
    for folder, images in (("", UNLABELLED + 1), ("", UNLABELLED[:9]), ("batches", [UNLABELLED + 1])):
        refuses("differs in .*images", run, tmp_path / folder, rounds=1, images=images)
    (tmp_path / "round_1" / "pseudo_labels.npz").write_bytes(b"")
    refuses("Cannot read the pseudo labels", run, tmp_path, rounds=1)
