import keras
import numpy as np
import pytest

from keras_vit.semi_supervised import PseudoLabels, pseudo_labels
from tests import tiny

IMAGES = np.random.default_rng(0).normal(size=(40, 16, 16, 3)).astype("float32")


def table_teacher(activation=None):
    """Answers with the numbers of its images, so that a test sets them."""
    head = keras.layers.Dense(3, activation, kernel_initializer="identity")
    return keras.Sequential([keras.Input((1, 1, 3)), keras.layers.Flatten(), head])


def of(probabilities, **options):
    images = np.log(np.array(probabilities, "float32"))[:, None, None, :]
    return pseudo_labels(table_teacher(), images, **options)


PROBABILITIES = [
    [0.6, 0.3, 0.1],
    [0.4, 0.35, 0.25],
    [0.1, 0.8, 0.1],
    [0.6, 0.1, 0.3],
    [0.9, 0.05, 0.05],
    [0.4, 0.2, 0.4],
]


def test_the_threshold_is_kept_itself():
    assert of(PROBABILITIES, threshold=0.6).indices.tolist() == [0, 2, 3, 4]
    assert of(PROBABILITIES, threshold=0.601).indices.tolist() == [2, 4]
    labels = of(PROBABILITIES, threshold=0)
    assert labels.indices.tolist() == [0, 1, 2, 3, 4, 5] and len(labels) == 6
    np.testing.assert_allclose(labels.confidences, np.max(PROBABILITIES, axis=1), atol=1e-4)
    with pytest.raises(ValueError, match=r"`threshold`.*at most the largest confidence, 0\.9"):
        of(PROBABILITIES, threshold=0.95)


def test_each_class_gets_as_many_images():
    # Class 0 has images 4 (0.9), 0 and 3 (0.6 each), 1 and 5 (0.4 each); class 1 has image 2, class 2 has none.
    for per_class, expected in (
        (1, [2, 4]),
        (2, [0, 2, 2, 4]),
        (3, [0, 2, 2, 2, 3, 4]),
        (4, [0, 1, 2, 2, 2, 2, 3, 4]),
        (7, [0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 3, 4, 4, 5]),
    ):
        labels = of(PROBABILITIES, kind="hard", per_class=per_class)
        assert labels.indices.tolist() == expected
        assert labels.labels.tolist() == [int(i == 2) for i in expected]
        assert labels.class_counts == (min(per_class, 5), 1, 0)
        assert labels.empty_classes == ("2",)


def test_temperatures():
    labels = of(PROBABILITIES, threshold=0)
    np.testing.assert_allclose(labels.labels, PROBABILITIES, atol=1e-6)
    halved = np.sqrt(PROBABILITIES)
    np.testing.assert_allclose(
        of(PROBABILITIES, threshold=0, temperature=2).labels, halved / halved.sum(axis=1, keepdims=True), atol=1e-6
    )
    # Near 0 it is the argmax, except of a tie.
    hard = of(PROBABILITIES[:5], threshold=0, kind="hard").labels
    np.testing.assert_allclose(of(PROBABILITIES[:5], threshold=0, temperature=1e-4).labels, np.eye(3)[hard], atol=1e-6)
    # The temperature changes no choice.
    assert of(PROBABILITIES, threshold=0.6, temperature=100).indices.tolist() == [0, 2, 3, 4]


def test_probabilities_count_as_logits_do():
    images = np.log(np.array(PROBABILITIES, "float32"))[:, None, None, :]
    for temperature in (1.0, 0.5):
        first, second = (pseudo_labels(table_teacher(a), images, temperature=temperature) for a in (None, "softmax"))
        np.testing.assert_allclose(first.labels, second.labels, atol=1e-6)
        assert first.indices.tolist() == second.indices.tolist()


def teacher():
    """Random in training, in several ways."""
    model = tiny.build(dropout_rate=0.5, drop_path_rate=0.5, attention_dropout_rate=0.5)
    return tiny.randomize(model, scale=0.7)


def test_no_seed_or_batch_size_matters():
    # Twins, whose order only their positions decide.
    images = np.concatenate([IMAGES, IMAGES[::-1]])
    model = teacher()
    results = []
    for seed, batch_size in ((0, 32), (1, 1), (2, 80), (3, 7)):
        keras.utils.set_random_seed(seed)
        options = {"threshold": 0.25, "per_class": 9, "batch_size": batch_size}
        results.append([pseudo_labels(model, images, kind=kind, **options) for kind in ("hard", "soft")])
    for hard, soft in results:
        np.testing.assert_array_equal(hard.indices, results[0][0].indices)
        np.testing.assert_array_equal(hard.labels, results[0][0].labels)
        np.testing.assert_array_equal(soft.indices, results[0][1].indices)
        np.testing.assert_allclose(soft.labels, results[0][1].labels, atol=1e-6)
        np.testing.assert_array_equal(hard.indices, soft.indices)
        np.testing.assert_array_equal(hard.labels, soft.labels.argmax(axis=1))
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(model(images[results[0][1].indices], training=False)))
    np.testing.assert_allclose(results[0][1].labels, expected, atol=1e-5)


def test_batches_of_any_kind():
    tf = pytest.importorskip("tensorflow", reason="it makes datasets for each backend")
    model = teacher()
    expected = pseudo_labels(model, IMAGES, threshold=0.25)
    for data in (
        tf.data.Dataset.from_tensor_slices(IMAGES).batch(9),
        tf.data.Dataset.from_tensor_slices((IMAGES, np.zeros(40))).batch(9),
        [IMAGES[:30], IMAGES[30:]],
    ):
        labels = pseudo_labels(model, data, threshold=0.25)
        np.testing.assert_array_equal(labels.indices, expected.indices)
        np.testing.assert_allclose(labels.labels, expected.labels, atol=1e-6)
    with pytest.raises(ValueError, match="`images`.*a dataset that ends"):
        pseudo_labels(model, tf.data.Dataset.from_tensor_slices(IMAGES).batch(9).repeat())


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_they_are_stored_whole_or_refused(tmp_path, kind):
    labels, path = pseudo_labels(teacher(), IMAGES, kind=kind, threshold=0.25, per_class=4), tmp_path / "labels.npz"
    labels.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["labels.npz"]
    again = PseudoLabels.load(path)
    for name in ("indices", "labels", "confidences"):
        np.testing.assert_array_equal(getattr(again, name), getattr(labels, name))
        assert getattr(again, name).dtype == getattr(labels, name).dtype
    assert (again.class_names, again.class_counts) == (labels.class_names, labels.class_counts)
    assert again.settings == labels.settings and again.settings["num_images"] == 40
    assert again.teacher == labels.teacher and again.teacher["config"]["hidden_dim"] == 12
    content = path.read_bytes()
    for damaged in (
        content[:-40],
        content[:200] + b"\xff" + content[201:],
        b"",
        content.replace(b"version 1", b"version 9"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="Cannot read the pseudo labels"):
            PseudoLabels.load(path)
    with pytest.raises(FileNotFoundError, match="`path`"):
        PseudoLabels.load(tmp_path / "none.npz")


def test_the_teachers_weights_are_known_by_their_sum():
    model = teacher()
    first = pseudo_labels(model, IMAGES[:2], threshold=0).teacher
    assert pseudo_labels(model, IMAGES[2:4], threshold=0).teacher == first
    model.get_layer("head").bias.assign(np.ones(5))
    assert pseudo_labels(model, IMAGES[:2], threshold=0).teacher["sha256"] != first["sha256"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "firm"}, "`kind`.*'soft', 'hard'"),
        ({"temperature": 0}, "`temperature`.*above 0"),
        ({"threshold": 1.0}, r"`threshold`.*\[0, 1\)"),
        ({"per_class": 0}, "`per_class`.*at least 1"),
        ({"batch_size": 0}, "`batch_size`.*at least 1"),
        ({"images": np.zeros((2, 8, 8, 3))}, r"`images`.*Received: \(8, 8, 3\)"),
        ({"images": 7}, "`images`.*an array.*Received: 'int'"),
        ({"images": np.zeros((0, 1, 1, 3))}, "`images`.*at least one image"),
    ],
    ids=str,
)
def test_bad_arguments(changes, message):
    options = {"teacher": table_teacher(), "images": np.zeros((2, 1, 1, 3)), **changes}
    with pytest.raises(ValueError, match=message):
        pseudo_labels(**options)


def test_other_teachers_are_refused():
    with pytest.raises(ValueError, match="`teacher`.*sum to 1.*Received: 1.5"):
        pseudo_labels(table_teacher("sigmoid"), np.zeros((2, 1, 1, 3)))
    with pytest.raises(ValueError, match="`teacher`.*two or more classes"):
        pseudo_labels(tiny.build(num_classes=1), IMAGES)
