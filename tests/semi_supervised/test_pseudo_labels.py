import keras
import numpy as np
import pytest

from keras_vit.semi_supervised import PseudoLabels, pseudo_labels
from tests import tiny
from tests.errors import not_found, refuses

IMAGES = np.random.default_rng(0).normal(size=(12, 16, 16, 3)).astype("float32")
PROBABILITIES = [[0.6, 0.3, 0.1], [0.4, 0.35, 0.25], [0.1, 0.8, 0.1]]
PROBABILITIES += [[0.6, 0.1, 0.3], [0.9, 0.05, 0.05], [0.4, 0.2, 0.4]]
REFUSED = [
    ({"threshold": 1.0}, r"`threshold`.*\[0, 1\)"),
    ({"per_class": 0}, "`per_class`.*at least 1"),
    ({"batch_size": 0}, "`batch_size`.*at least 1"),
    ({"images": np.zeros((2, 8, 8, 3))}, r"`images`.*Received: \(8, 8, 3\)"),
    ({"images": np.zeros((0, 1, 1, 3))}, "`images`.*at least one image"),
]


def table_teacher(activation=None):
    """Returns the pixels of its images as logits."""
    head = keras.layers.Dense(3, activation, kernel_initializer="identity")
    return keras.Sequential([keras.Input((1, 1, 3)), keras.layers.Flatten(), head])


def of(probabilities, **options):
    images = np.log(np.array(probabilities, "float32"))[:, None, None, :]
    return pseudo_labels(table_teacher(), images, **options)


def test_threshold_keeps_equal_confidences():
    assert of(PROBABILITIES, threshold=0.6).indices.tolist() == [0, 2, 3, 4]
    assert of(PROBABILITIES, threshold=0.601).indices.tolist() == [2, 4]
    labels = of(PROBABILITIES, threshold=0)
    assert labels.indices.tolist() == [0, 1, 2, 3, 4, 5] and len(labels) == 6
    np.testing.assert_allclose(labels.confidences, np.max(PROBABILITIES, axis=1), atol=1e-4)
    refuses(r"`threshold`.*at most the largest confidence, 0\.9", of, PROBABILITIES, threshold=0.95)


def test_per_class_balances_classes():
    # Class 0 has images 4 (0.9), 0 and 3 (0.6 each), 1 and 5 (0.4 each); class 1 has image 2, class 2 has none.
    for per_class, expected in (
        (1, [2, 4]),
        (3, [0, 2, 2, 2, 3, 4]),
        (4, [0, 1, 2, 2, 2, 2, 3, 4]),
        (7, [0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 3, 4, 4, 5]),
    ):
        labels = of(PROBABILITIES, kind="hard", per_class=per_class)
        assert labels.indices.tolist() == expected
        assert labels.labels.tolist() == [int(i == 2) for i in expected]
        assert labels.class_counts == (min(per_class, 5), 1, 0)
        assert labels.empty_classes == ("2",)


def test_temperature_changes_labels_but_no_choice():
    np.testing.assert_allclose(of(PROBABILITIES, threshold=0).labels, PROBABILITIES, atol=1e-6)
    halved = np.sqrt(PROBABILITIES) / np.sqrt(PROBABILITIES).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(of(PROBABILITIES, threshold=0, temperature=2).labels, halved, atol=1e-6)
    # Near temperature 0, soft labels are one-hot if no probabilities are equal.
    hard = of(PROBABILITIES[:5], threshold=0, kind="hard").labels
    np.testing.assert_allclose(of(PROBABILITIES[:5], threshold=0, temperature=1e-4).labels, np.eye(3)[hard], atol=1e-6)
    assert of(PROBABILITIES, threshold=0.6, temperature=100).indices.tolist() == [0, 2, 3, 4]


def test_probabilities_give_the_same_labels_as_logits():
    images = np.log(np.array(PROBABILITIES, "float32"))[:, None, None, :]
    for temperature in (1.0, 0.5):
        first, second = (pseudo_labels(table_teacher(a), images, temperature=temperature) for a in (None, "softmax"))
        np.testing.assert_allclose(first.labels, second.labels, atol=1e-6)
        assert first.indices.tolist() == second.indices.tolist()


@pytest.fixture(scope="module")
def teacher():
    """A model with several kinds of random layers."""
    model = tiny.build(num_layers=1, dropout_rate=0.5, drop_path_rate=0.5, attention_dropout_rate=0.5)
    return tiny.randomize(model, scale=0.7)


def test_seed_and_batch_size_change_nothing(teacher):
    # Two equal images are ordered by their positions.
    images = np.concatenate([IMAGES, IMAGES[::-1]])
    results = []
    for seed, batch_size in ((0, 32), (1, 5), (2, 24)):
        keras.utils.set_random_seed(seed)
        options = {"threshold": 0.25, "per_class": 3, "batch_size": batch_size}
        results.append([pseudo_labels(teacher, images, kind=kind, **options) for kind in ("hard", "soft")])
    for hard, soft in results:
        np.testing.assert_array_equal(hard.indices, results[0][0].indices)
        np.testing.assert_array_equal(hard.labels, results[0][0].labels)
        np.testing.assert_array_equal(soft.indices, results[0][1].indices)
        np.testing.assert_allclose(soft.labels, results[0][1].labels, atol=1e-6)
        np.testing.assert_array_equal(hard.indices, soft.indices)
        np.testing.assert_array_equal(hard.labels, soft.labels.argmax(axis=1))
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(teacher(images[results[0][1].indices], training=False)))
    np.testing.assert_allclose(results[0][1].labels, expected, atol=1e-5)


class Incomplete(list):
    """Batches without a broken image."""

    num_images, broken = 8, [3]


def test_datasets_and_lists_give_the_labels_of_arrays(teacher):
    tf = pytest.importorskip("tensorflow", reason="the datasets are tf.data")
    expected = pseudo_labels(teacher, IMAGES, threshold=0.25)
    for data in (
        tf.data.Dataset.from_tensor_slices(IMAGES).batch(5),
        tf.data.Dataset.from_tensor_slices((IMAGES, np.zeros(12))).batch(5),
        [IMAGES[:7], IMAGES[7:]],
    ):
        labels = pseudo_labels(teacher, data, threshold=0.25)
        np.testing.assert_array_equal(labels.indices, expected.indices)
        np.testing.assert_allclose(labels.labels, expected.labels, atol=1e-6)
    incomplete = Incomplete([IMAGES[:7]])
    message = r"`images`.*8 images can all be read. Received: 7 images; broken: \[3\]"
    refuses(message, pseudo_labels, teacher, incomplete, threshold=0.25)
    endless = tf.data.Dataset.from_tensor_slices(IMAGES).batch(9).repeat()
    refuses("`images`.*a dataset that ends", pseudo_labels, teacher, endless)


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_labels_reload_and_damaged_files_are_refused(tmp_path, kind, teacher):
    labels, path = pseudo_labels(teacher, IMAGES, kind=kind, threshold=0.25, per_class=4), tmp_path / "labels.npz"
    labels.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["labels.npz"]
    again = PseudoLabels.load(path)
    for name in ("indices", "labels", "confidences"):
        np.testing.assert_array_equal(getattr(again, name), getattr(labels, name))
        assert getattr(again, name).dtype == getattr(labels, name).dtype
    assert (again.class_names, again.class_counts) == (labels.class_names, labels.class_counts)
    assert again.settings == labels.settings and again.settings["num_images"] == 12
    assert again.teacher == labels.teacher
    content = path.read_bytes()
    flipped, newer = content[:200] + b"\xff" + content[201:], content.replace(b"version 1", b"version 9")
    for damaged in (content[:-40], flipped, b"", newer):
        path.write_bytes(damaged)
        refuses("Cannot read the pseudo labels", PseudoLabels.load, path)
    np.savez_compressed(path, header=np.zeros(0, "uint8"), indices=np.zeros(5_000_000))
    refuses("its members expand to", PseudoLabels.load, path)
    not_found("`path`", PseudoLabels.load, tmp_path / "none.npz")


@pytest.mark.parametrize("changes, message", REFUSED, ids=str)
def test_bad_arguments(changes, message):
    options = {"teacher": table_teacher(), "images": np.zeros((2, 1, 1, 3)), **changes}
    refuses(message, pseudo_labels, **options)


def test_unsuitable_teachers():
    refuses("`teacher`.*sum to 1.*Received: 1.5", pseudo_labels, table_teacher("sigmoid"), np.zeros((2, 1, 1, 3)))
    refuses("`teacher`.*two or more classes", pseudo_labels, tiny.build(num_classes=1), IMAGES)
