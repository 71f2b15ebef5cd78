import numpy as np
import pytest

from keras_vit import console as progress
from keras_vit.evaluation import extract_features, few_shot_accuracy, knn_accuracy, linear_probe_accuracy
from tests.evaluation.arrays import blobs
from tests.tiny import build

FEATURES = None, blobs(60), blobs(150, seed=1)
IMAGES, LABELS = np.random.default_rng(0).normal(size=(7, 16, 16, 3)).astype("float32"), np.arange(7)
RUNS = [
    (lambda **options: extract_features(build(), (IMAGES, LABELS), batch_size=3, **options), ["3/3", "images/s: "]),
    (lambda **options: few_shot_accuracy(*FEATURES, shots=3, seeds=(0, 1), l2=(0.1, 1.0), **options), ["4/4"]),
    (lambda **options: knn_accuracy(*FEATURES, k=1, **options), ["150/150"]),
    (lambda **options: linear_probe_accuracy(*FEATURES, **options), ["Fitting 6 linear classifiers"]),
]


@pytest.mark.parametrize("run, texts", RUNS, ids=["features", "few_shot", "knn", "linear_probe"])
def test_progress_is_shown_unless_verbose_is_0(run, texts, capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    run()
    shown = capsys.readouterr().out
    assert all(text in shown for text in texts)
    run(verbose=0)
    assert capsys.readouterr().out == ""
