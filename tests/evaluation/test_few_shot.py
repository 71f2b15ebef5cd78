import json

import numpy as np
import pytest

from keras_vit.evaluation import extract_features, few_shot_accuracy
from tests.errors import refuses
from tests.evaluation.arrays import blobs
from tests.golden import GOLDEN_FOLDER
from tests.tiny import build

TRAIN, TEST = blobs(60), blobs(200, seed=1)
REFUSED = [
    ({"shots": 16}, "`shots`. Expected at most 15, the number of training images of class 0. Received: 16"),
    ({"seeds": ()}, "`seeds`. Expected at least one"),
    ({"seeds": (-1,)}, "`seeds`"),
    ({"layer": "head"}, "`layer`. Expected None, since `model` is None. Received: 'head'"),
    ({"l2": [1, 0]}, "`l2`. Expected a number above 0"),
    ({"test": (TEST[0], TEST[1] + 1)}, "`train`. Expected images of all test classes. Received: no image of class 4"),
    ({"test": (TEST[0], TEST[1][:9])}, "`test`. Expected one label for each of 200 rows of features. Received: 9"),
    ({"test": (TEST[0][:, :5], TEST[1])}, "`test`. Expected 12 features for each image.*Received: 5"),
    ({"train": (TRAIN[0] * np.inf, TRAIN[1])}, "`train`. Expected finite"),
    ({"train": (TRAIN[0][0], TRAIN[1])}, "`train`. Expected finite"),
    ({"train": TRAIN[0]}, r"`train`. Expected \(features, labels\) as arrays, since `model` is None"),
]


def test_few_shot_matches_official_code():
    golden = np.load(GOLDEN_FOLDER / "fewshot_lsr.npz")
    expected = {float(k): v for k, v in json.loads((GOLDEN_FOLDER / "fewshot_lsr.json").read_text()).items()}
    arrays = [golden[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    # Each class has five images.
    for shots in (5, None):
        result = few_shot_accuracy(None, arrays[:2], arrays[2:], shots=shots, seeds=[0], l2=list(expected))
        assert result["by_l2"] == pytest.approx(expected, abs=0.004)


def standardized(x, train_x):
    x = (x - train_x.mean(axis=0)) / (train_x.std(axis=0) + 1e-5)
    return np.concatenate([x, np.full((len(x), 1), 100.0)], axis=1)


@pytest.mark.parametrize("num_features", [12, 90])
def test_few_shot_l2_by_leave_one_out(num_features):
    """Compares with one linear system per strength and left-out image, for more and for fewer images than features."""
    (x, y), (test_x, test_y) = blobs(60, num_features=num_features), blobs(200, num_features=num_features, seed=1)
    strengths = [1e-3, 1.0, 30.0, 1e3, 1e5]
    result = few_shot_accuracy(None, (x, y), (test_x, test_y), shots=None, seeds=7, l2=strengths)
    a, b = (standardized(v.astype("float64"), x.astype("float64")) for v in (x, test_x))
    targets = np.where(np.arange(4) == y[:, None], 1.0, -1.0)

    def solve(a, targets, l2):
        return np.linalg.solve(a.T @ a + l2 * np.eye(a.shape[1]), a.T @ targets)

    expected = {l2: np.mean((b @ solve(a, targets, l2)).argmax(axis=1) == test_y) for l2 in strengths}
    assert result["by_l2"] == pytest.approx(expected, abs=1e-9)
    errors = {}
    for l2 in strengths:
        rest = [np.arange(len(a)) != i for i in range(len(a))]
        errors[l2] = np.mean([(targets[~r] - a[~r] @ solve(a[r], targets[r], l2)) ** 2 for r in rest])
    assert result["l2"] == {7: min(errors, key=errors.get)}
    assert result["accuracy"] == result["by_l2"][result["l2"][7]]


def test_few_shot_shots_and_seeds():
    few = few_shot_accuracy(None, TRAIN, TEST, shots=2, seeds=(0, 1, 2))
    more = few_shot_accuracy(None, TRAIN, TEST, shots=15, seeds=(0, 1, 2))
    assert more["accuracy"] > few["accuracy"]
    assert len(set(few["by_seed"].values())) > 1
    # Each seed draws all 15 images of a class.
    assert len(set(more["by_seed"].values())) == 1
    assert few["accuracy"] == pytest.approx(np.mean(list(few["by_seed"].values())))
    assert few == few_shot_accuracy(None, TRAIN, TEST, shots=2, seeds=(0, 1, 2))
    # One-hot labels and columns of labels give the same result.
    assert few == few_shot_accuracy(None, (TRAIN[0], np.eye(4)[TRAIN[1]]), (TEST[0], TEST[1][:, None]), shots=2)


def test_few_shot_labels_with_gaps():
    result = few_shot_accuracy(None, (TRAIN[0], 3 * TRAIN[1] + 1), (TEST[0], 3 * TEST[1] + 1), shots=10)
    assert result == few_shot_accuracy(None, TRAIN, TEST, shots=10)


def test_few_shot_accuracy_of_model():
    rng = np.random.default_rng(0)
    labels = np.arange(20) % 2
    images = (rng.normal(size=(20, 16, 16, 3)) + 2 * labels[:, None, None, None]).astype("float32")
    model, data = build(), (images, labels)
    result = few_shot_accuracy(model, data, data, shots=8, batch_size=6, verbose=0)
    features = extract_features(model, data, verbose=0)
    assert result["by_l2"] == pytest.approx(few_shot_accuracy(None, features, features, shots=8)["by_l2"], abs=0.06)
    assert result["accuracy"] > 0.8
    assert set(few_shot_accuracy(model, data, data, shots=8, l2=0.5, verbose=0)["by_l2"]) == {0.5}
    # The options are checked before the features.
    refuses("`shots`", few_shot_accuracy, None, None, None, shots=0)


@pytest.mark.parametrize("changes, match", REFUSED)
def test_few_shot_refuses_invalid_features_or_options(changes, match):
    refuses(match, few_shot_accuracy, None, **{"train": TRAIN, "test": TEST, **changes})
