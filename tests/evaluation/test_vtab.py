import numpy as np
import pytest

import keras_vit.data
from keras_vit.evaluation import vtab_mean


def test_means_of_nineteen_tasks():
    names = list(keras_vit.data.VTAB)
    values = dict(zip(names, np.linspace(0.1, 0.9, 19), strict=True))
    found = vtab_mean(values, keras_vit.data.VTAB)
    scores = np.linspace(0.1, 0.9, 19)
    # The first 7 are natural, the next 4 specialized, the last 8 structured.
    expected = {"natural": scores[:7].mean(), "specialized": scores[7:11].mean(), "structured": scores[11:].mean()}
    assert found == pytest.approx({**expected, "mean": scores.mean()})
    assert list(found) == ["natural", "specialized", "structured", "mean"]
    assert found["mean"] != pytest.approx(np.mean(list(expected.values())))
    # In any order, and with the groups by name.
    groups = {name: task.group for name, task in keras_vit.data.VTAB.items()}
    assert vtab_mean(dict(reversed(values.items())), groups) == found


def test_bad_input():
    tasks = {"a": "natural", "b": "natural"}
    with pytest.raises(ValueError, match="each of 2 tasks. Received: none for b; not among the tasks: c"):
        vtab_mean({"a": 0.5, "c": 0.5}, tasks)
    for value in (55.0, float("nan"), "0.5", True):
        with pytest.raises(ValueError, match=r"numbers in \[0, 1\]. Received: .* for 'b'"):
            vtab_mean({"a": 0.5, "b": value}, tasks)
