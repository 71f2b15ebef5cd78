"""Fixtures that import and run the scripts in benchmarks/."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(request, monkeypatch):
    """The benchmark that the test file is named after: test_fuzz.py tests fuzz.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(request.path.stem.removeprefix("test_"))


@pytest.fixture
def run(script, monkeypatch):
    """A function that calls the benchmark's `main` with command-line arguments."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", [script.__file__, *map(str, arguments)])
        return script.main()

    return call
