"""The benchmark of two moons, which takes minutes, in a few steps; and what its results say."""

import importlib
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.backends("jax")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("two_moons")


def test_a_run_writes_each_row_and_goes_on(script, tmp_path, capsys):
    options = ["--out", str(tmp_path / "moons.json"), "--seeds", "0", "--steps", "100"]
    script.main([*options, "--methods", "pseudo_labels", "meta"])
    rows = json.loads((tmp_path / "moons.json").read_text())["runs"]
    assert all(
        0.3 <= rows[f"{method}/0"][role] <= 1 for method in ("pseudo_labels", "meta") for role in ("student", "teacher")
    )
    capsys.readouterr()
    script.main([*options, "--methods", "meta", "no_feedback"])
    output = capsys.readouterr().out
    assert "meta          seed" not in output and "no_feedback   seed 0" in output
    with pytest.raises(SystemExit, match="other settings"):
        script.main([*options[:-1], "50"])


def test_the_results_say_which_method_separates_the_moons():
    rows = json.loads((BENCHMARKS / "results" / "two_moons.json").read_text())["runs"]
    for seed in range(5):
        row = {method: rows[f"{method}/{seed}"] for method in ("pseudo_labels", "meta", "no_feedback", "meta_alone")}
        assert all(row["pseudo_labels"][role] < 0.9 < 0.96 < row["meta"][role] for role in ("student", "teacher"))
        # UDA does it, and not the feedback.
        assert abs(row["no_feedback"]["teacher"] - row["meta"]["teacher"]) < 0.005
        assert all(row["meta_alone"][role] < 0.9 for role in ("student", "teacher"))
