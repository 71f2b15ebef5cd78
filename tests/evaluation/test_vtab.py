import numpy as np
import pytest

import keras_vit.data
from keras_vit.evaluation import vtab_mean
from tests.errors import refuses


def test_vtab_mean_of_groups():
    names = list(keras_vit.data.VTAB)
    values = dict(zip(names, np.linspace(0.1, 0.9, 19), strict=True))
    found = vtab_mean(values, keras_vit.data.VTAB)
    scores = np.linspace(0.1, 0.9, 19)
    # The first 7 are natural, the next 4 specialized, the last 8 structured.
    expected = {"natural": scores[:7].mean(), "specialized": scores[7:11].mean(), "structured": scores[11:].mean()}
    assert found == pytest.approx({**expected, "mean": scores.mean()})
    assert list(found) == ["natural", "specialized", "structured", "mean"]
    assert found["mean"] != pytest.approx(np.mean(list(expected.values())))
    # The order does not matter, and a task may be the name of its group.
    groups = {name: task.group for name, task in keras_vit.data.VTAB.items()}
    assert vtab_mean(dict(reversed(values.items())), groups) == found


def test_vtab_mean_refuses_invalid_accuracies():
    tasks = {"a": "natural", "b": "natural"}
    refuses("each of 2 tasks. Received: missing: b; not in `tasks`: c", vtab_mean, {"a": 0.5, "c": 0.5}, tasks)
    for value in (55.0, float("nan"), "0.5", True):
        refuses(r"numbers in \[0, 1\]. Received: .* for 'b'", vtab_mean, {"a": 0.5, "b": value}, tasks)
