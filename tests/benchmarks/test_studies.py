"""Runs each study with a few steps on synthetic images."""

import importlib
import inspect
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.benchmarks.conftest import BENCHMARKS

STUDIES = BENCHMARKS / "studies"
NAMES = sorted(path.stem for path in STUDIES.glob("*.py") if path.stem not in ("study", "training", "axial_block"))


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(STUDIES))
    yield importlib.import_module("study")
    # The modules have common names, which other tests could import.
    for name in ("axial_block", "study", "training", *NAMES):
        sys.modules.pop(name, None)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_quick_study_writes_results_and_plot(name, study, tmp_path, monkeypatch):
    # The runs take place in this process, because a new process would import Keras again.
    monkeypatch.setattr(study, "ProcessPoolExecutor", lambda workers, *_: ThreadPoolExecutor(workers))
    out = tmp_path / "study.json"
    study.main(importlib.import_module(name).STUDY, ["--quick", "--workers", "1", "--out", str(out)])
    found = json.loads(out.read_text())
    assert found["study"] == name and found["runs"]
    for key, row in found["runs"].items():
        assert key.endswith("/0") and row["seconds"] > 0
        scores = [row[score] for score in ("accuracy", "transfer", "few_shot") if score in row]
        assert scores and all(0 <= score <= 1 for score in scores)
    assert out.with_suffix(".png").stat().st_size > 5_000


def test_study_cases_match_the_arguments_of_run(study):
    for name in NAMES:
        made = importlib.import_module(name).STUDY
        assert made.name == name and set(made.quick_cases) <= set(made.cases)
        assert set(made.quick) <= set(made.common)
        for settings in made.cases.values():
            # Raises if one is missing or unknown.
            inspect.signature(made.run).bind(None, 0, **(made.common | settings))
