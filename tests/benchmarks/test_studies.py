"""Runs each study with a few steps on synthetic images."""

import importlib
import inspect
import json
import os
import subprocess
import sys

import pytest

from tests.benchmarks.conftest import BENCHMARKS

STUDIES = BENCHMARKS / "studies"
NAMES = sorted(path.stem for path in STUDIES.glob("*.py") if path.stem not in ("study", "training", "axial_block"))


def start(name, out, *options):
    """Starts a quick run."""
    command = [sys.executable, STUDIES / f"{name}.py", "--quick", "--workers", "1", "--out", out, *options]
    paths = os.pathsep.join([str(STUDIES.parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": paths}
    text = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(list(map(str, command)), env=env, **text)


def finish(process):
    output = process.communicate(timeout=600)[0]
    assert process.returncode == 0, output
    return output


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(STUDIES))
    yield importlib.import_module("study")
    # The modules have common names, which other tests could import.
    for name in ("axial_block", "study", "training", *NAMES):
        sys.modules.pop(name, None)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_quick_study_writes_results_and_plot(name, tmp_path):
    output = finish(start(name, tmp_path / "study.json"))
    found = json.loads((tmp_path / "study.json").read_text())
    assert found["study"] == name and found["runs"]
    for key, row in found["runs"].items():
        assert key.endswith("/0") and key in output
        assert row["seconds"] > 0 and len(row) > 1
        scores = [row[score] for score in ("accuracy", "transfer", "few_shot") if score in row]
        assert scores and all(0 <= score <= 1 for score in scores)
    assert (tmp_path / "study.png").stat().st_size > 5_000


def test_study_cases_match_the_arguments_of_run(study):
    for name in NAMES:
        made = importlib.import_module(name).STUDY
        assert made.name == name and set(made.quick_cases) <= set(made.cases)
        assert set(made.quick) <= set(made.common)
        for settings in made.cases.values():
            # Raises if one is missing or unknown.
            inspect.signature(made.run).bind(None, 0, **(made.common | settings))
