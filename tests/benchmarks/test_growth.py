import importlib
import json
from pathlib import Path

import pytest

# The children, which would use the backend, are not started.
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def growth(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    growth = importlib.import_module("growth")
    monkeypatch.setattr(growth, "SERIES", {"image size": ({"batch": 1}, (32, 64, 128)), "depth": ({}, (1, 2))})
    monkeypatch.setattr(growth, "BASE", {**growth.BASE, "image size": 32, "depth": 1, "width": 64})
    measured = []

    def side_of(entrant, case, task, batch):
        measured.append((case.model, case.num_layers, task, batch))
        tokens = growth.tokens_of(case, 1)
        return {"next_call": tokens / 1e3, "first_call": 1.0, "peak_after_build": 3.0 * tokens, "built": 5.0}

    monkeypatch.setattr(growth, "side_of", side_of)
    growth.measured = measured
    return growth


def run(growth, monkeypatch, *arguments):
    growth.measured.clear()
    monkeypatch.setattr("sys.argv", ["growth.py", *map(str, arguments)])
    growth.main()
    return growth.measured


def test_an_interrupted_run_measures_what_is_missing(growth, tmp_path, monkeypatch, capsys):
    out = tmp_path / "growth_torch.json"
    assert run(growth, monkeypatch, "--out", out, "--series", "image size", "--tasks", "train") == [
        (f"S/16@{size}", 1, "train", 1) for size in (32, 64, 128)
    ]
    assert "train: memory exponent 1.00" in capsys.readouterr().out
    assert len(run(growth, monkeypatch, "--out", out)) == 3 + 4
    rows = json.loads(out.read_text())["rows"]
    steps = {row["task"]: row["multiply_adds"] for row in rows if (row["series"], row["depth"]) == ("depth", 2)}
    assert steps["train"] == 3 * steps["forward"] > 0
    run(growth, monkeypatch, "--out", out, "--plot")
    assert (tmp_path / "growth.png").stat().st_size > 10_000


def test_results_of_another_machine_are_kept(growth, tmp_path, monkeypatch):
    out = tmp_path / "growth_torch.json"
    out.write_text(json.dumps({"backend": "another", "rows": []}))
    with pytest.raises(SystemExit, match="Received others: backend, cores"):
        run(growth, monkeypatch, "--out", out)


def test_theory_goes_through_the_largest_point(growth):
    rows = [{"tokens": 5, "MB": 2.0, "seconds": 1.0, "multiply_adds": 10}]
    rows.append({"tokens": 10, "MB": 9.0, "seconds": 9.0, "multiply_adds": 30})
    assert growth.expected(rows, "tokens", "MB", "forward") == [4.5, 9.0]
    assert growth.expected(rows, "tokens", "seconds", "train") == [3.0, 9.0]
    assert growth.expected(rows, "depth", "MB", "forward") == [9.0, 9.0]
