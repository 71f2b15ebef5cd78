import csv
import json

import numpy as np
import pytest

import keras_vit.data
from keras_vit.evaluation import ResultsTable, vtab_mean
from tests.errors import not_found, refuses


def example():
    table = ResultsTable()
    table.add(model="B/16, 224", accuracy=0.5, images=np.int64(12000))
    table.add(model='"L"', accuracy=np.float32(0.25), best=np.bool_(True))
    table.add(model="H\n14", accuracy=float("nan"), images=None)
    return table


def test_results_table_to_json_and_csv(tmp_path):
    example().to_json(tmp_path / "t.json")
    rows = json.loads((tmp_path / "t.json").read_text())
    assert rows[0] == {"model": "B/16, 224", "accuracy": 0.5, "images": 12000, "best": None}
    assert rows[1]["best"] is True and rows[2]["accuracy"] is None
    example().to_csv(tmp_path / "t.csv")
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["model", "accuracy", "images", "best"]
    assert rows[1:] == [["B/16, 224", "0.5", "12000", ""], ['"L"', "0.25", "", "True"], ["H\n14", "nan", "", ""]]


def test_results_table_as_text():
    table = ResultsTable()
    table.add(model="B/16", accuracy=0.5, images=12000)
    table.add(model="L", accuracy=None, images=7)
    assert str(table) == "model  accuracy  images\nB/16     0.5000  12,000\nL                     7"


def test_failed_write_keeps_old_file(tmp_path, monkeypatch):
    (tmp_path / "t.json").write_text("old")
    monkeypatch.setattr(json, "dumps", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        example().to_json(tmp_path / "t.json")
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [("t.json", "old")]
    not_found("nowhere", example().to_csv, tmp_path / "nowhere" / "t.csv")


def test_results_table_refuses_invalid_values():
    refuses("`scores`. Expected a string.*Received: \\[1\\]", ResultsTable().add, scores=[1])
    refuses("at least one value", ResultsTable().add)


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
