import keras
import numpy as np
import pytest

from keras_vit.evaluation import accuracy, top_k_accuracy
from tests.tiny import build, randomize

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.normal(size=(11, 16, 16, 3)).astype("float32"), RNG.integers(0, 5, 11)


def test_as_keras_evaluate():
    model = randomize(build())
    metrics = ["sparse_categorical_accuracy", keras.metrics.SparseTopKCategoricalAccuracy(3, name="top")]
    model.compile(loss="sparse_categorical_crossentropy", metrics=metrics)
    expected = model.evaluate(IMAGES, LABELS, batch_size=4, verbose=0, return_dict=True)
    found = accuracy(model, (IMAGES, LABELS), k=(1, 3), batch_size=4, verbose=0)
    assert found == pytest.approx(
        {"top_1": expected["sparse_categorical_accuracy"], "top_3": expected["top"]}, abs=1e-6
    )
    assert 0 < found["top_1"] < found["top_3"] < 1


def test_as_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics", reason="it counts the same")
    scores, labels = RNG.normal(size=(50, 8)), RNG.permutation(np.arange(50) % 8)
    for k in range(1, 8):
        expected = metrics.top_k_accuracy_score(labels, scores, k=k)
        assert top_k_accuracy(scores, labels, k=k) == pytest.approx(expected)
        assert top_k_accuracy(scores, np.eye(8)[labels], k=k) == pytest.approx(expected)
    assert top_k_accuracy(scores, labels, k=8) == 1


def test_a_head_that_is_zero_is_no_better_than_chance():
    found = accuracy(build(head_init="zeros", num_classes=10), (np.zeros((10, 16, 16, 3)), np.arange(10)), verbose=0)
    assert found == {"top_1": 0.1, "top_5": 0.5}


def test_bad_input():
    scores = np.eye(3)
    with pytest.raises(ValueError, match="`labels`. Expected classes below 3, .*Received: 3"):
        top_k_accuracy(scores, [0, 1, 3])
    with pytest.raises(ValueError, match="`k`. Expected at most 3, .*Received: 4"):
        top_k_accuracy(scores, [0, 1, 2], k=4)
    with pytest.raises(ValueError, match="`labels`. Expected one a prediction, 3. Received: 2"):
        top_k_accuracy(scores, [0, 1])
    with pytest.raises(ValueError, match="`predictions`. Expected finite"):
        top_k_accuracy(scores * np.nan, [0, 1, 2])
    with pytest.raises(ValueError, match="`k`"):
        accuracy(None, None, k=0)
    with pytest.raises(ValueError, match="Expected a model with one output. Received: .* with 2"):
        accuracy(build(distillation_token=True, return_both_heads=True), (IMAGES, LABELS), verbose=0)
