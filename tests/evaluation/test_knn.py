import numpy as np
import pytest

from keras_vit.evaluation import classifiers, knn_accuracy
from tests.errors import refuses
from tests.evaluation.arrays import blobs

TRAIN, TEST = blobs(80, spread=2), blobs(150, seed=1, spread=2)


@pytest.mark.parametrize("k, temperature", [(1, 0.07), (5, 0.07), (20, 0.5), (80, 0.07), (5, np.inf)])
def test_knn_accuracy_matches_scikit_learn(k, temperature, monkeypatch):
    neighbors = pytest.importorskip("sklearn.neighbors", reason="it votes among neighbours too")
    # There are several chunks, and the last one is not full.
    monkeypatch.setattr(classifiers, "CHUNK", 64)
    reference = neighbors.KNeighborsClassifier(k, metric="cosine", weights=lambda d: np.exp((1 - d) / temperature))
    expected = reference.fit(*TRAIN).score(*TEST)
    assert knn_accuracy(None, TRAIN, TEST, k=k, temperature=temperature) == pytest.approx(expected)
    assert 0.3 < expected < 1


def test_knn_low_temperature_does_not_overflow():
    assert knn_accuracy(None, TRAIN, TEST, k=5, temperature=1e-5) == knn_accuracy(None, TRAIN, TEST, k=1)


def test_knn_refuses_invalid_options():
    refuses("`k`. Expected at most 80, .*Received: 81", knn_accuracy, None, TRAIN, TEST, k=81)
    for options in ({"k": 0}, {"temperature": 0}, {"temperature": -1.0}):
        refuses(f"`{next(iter(options))}`", knn_accuracy, None, None, None, **options)
