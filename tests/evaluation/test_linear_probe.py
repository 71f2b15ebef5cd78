import keras
import numpy as np
import pytest

from keras_vit.evaluation import linear_probe_accuracy
from tests.errors import refuses
from tests.evaluation.arrays import blobs
from tests.tiny import build

TRAIN, TEST = blobs(120, spread=2), blobs(300, seed=1, spread=2)


@pytest.mark.parametrize("l2", [1e-3, 0.1])
def test_linear_probe_matches_scikit_learn(l2):
    linear_model = pytest.importorskip("sklearn.linear_model", reason="it has the same regression")
    mean, std = TRAIN[0].mean(axis=0), TRAIN[0].std(axis=0)
    reference = linear_model.LogisticRegression(C=1 / (l2 * len(TRAIN[0])), tol=1e-8, max_iter=5000)
    reference.fit((TRAIN[0] - mean) / std, TRAIN[1])
    result = linear_probe_accuracy(None, TRAIN, TEST, l2=l2)
    expected = reference.decision_function((TEST[0] - mean) / std)
    found = keras.ops.convert_to_numpy(result["head"](TEST[0]))
    # Logits are equal up to a constant.
    expected, found = (x - x.mean(axis=1, keepdims=True) for x in (expected, found))
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert result["accuracy"] == reference.score((TEST[0] - mean) / std, TEST[1])
    assert result["l2"] == l2


def test_linear_probe_chooses_l2_without_test_images():
    """With few images of many features, a low strength fits noise."""
    train, test = blobs(40, num_features=60, spread=6), blobs(400, num_features=60, seed=1, spread=6)
    strengths = (1e-6, 1e-3, 1.0)
    by_strength = {l2: linear_probe_accuracy(None, train, test, l2=l2)["accuracy"] for l2 in strengths}
    result = linear_probe_accuracy(None, train, test, l2=strengths)
    assert result["accuracy"] == by_strength[result["l2"]]
    nothing = linear_probe_accuracy(None, train, (np.zeros_like(test[0]), test[1]), l2=strengths)
    assert nothing["l2"] == result["l2"]


def test_linear_probe_ignores_constant_features():
    x, test_x = (np.pad(part[0], ((0, 0), (0, 1)), constant_values=3.0) for part in (TRAIN, TEST))
    test_x[:, -1] = 1000
    result = linear_probe_accuracy(None, (x, TRAIN[1]), (test_x, TEST[1]), l2=0.1)
    assert result["accuracy"] == linear_probe_accuracy(None, TRAIN, TEST, l2=0.1)["accuracy"]


def test_linear_probe_of_model_gives_weights_of_head():
    rng = np.random.default_rng(0)
    labels = np.arange(20) % 2
    images = (rng.normal(size=(20, 16, 16, 3)) + labels[:, None, None, None]).astype("float32")
    model = build(num_classes=2)
    result = linear_probe_accuracy(model, (images, labels), (images, labels), l2=1e-3, batch_size=8, verbose=0)
    assert result["accuracy"] == 1
    model.get_layer("head").set_weights(result["head"].get_weights())
    assert (keras.ops.convert_to_numpy(model(images)).argmax(axis=1) == labels).all()


def test_linear_probe_refuses_invalid_options():
    for name, value in (("l2", 0), ("l2", ()), ("validation_split", 0), ("seed", -1), ("seed", 0.5)):
        refuses(f"`{name}`", linear_probe_accuracy, None, None, None, **{name: value})
    one = TRAIN[0][:1], TRAIN[1][:1]
    refuses("two or more images, because some are held out .*Received: 1", linear_probe_accuracy, None, one, TEST)
