"""A fixture that imports the scripts in benchmarks/."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(request, monkeypatch):
    """The benchmark that the test file is named after: test_fuzz.py tests fuzz.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(request.path.stem.removeprefix("test_"))
