import importlib
import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def startup(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("startup")


def run(startup, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["startup.py", *map(str, arguments)])
    startup.main()


def test_the_steps_of_a_child(startup, tmp_path):
    spec = {"model": "Ti/16", "num_layers": 1, "file": str(tmp_path / "Ti16")}
    assert startup.child({**spec, "step": "save"}) == {}
    for step in startup.STEPS:
        found = startup.child({**spec, "step": step})
        assert found["seconds"] > 0
        if step != "import":
            assert found["bytes"] == 4 * (192 * (3 * 16**2 + 1 + 1 + 197 + 1002) + 12 * 192**2 + 13 * 192 + 1000)


def test_an_interrupted_run_measures_what_is_missing(startup, tmp_path, monkeypatch, capsys):
    specs = []

    def in_child(spec):
        specs.append(spec["step"])
        return {"seconds": 2.0} if spec["step"] == "import" else {"seconds": 3.0, "peak": 1.1}

    monkeypatch.setattr(startup, "in_child", in_child)
    options = ("--out", tmp_path / "a.json", "--models", "B/16", "--rounds", 2)
    run(startup, monkeypatch, *options, "--steps", "build")
    assert specs == ["build"] * 2
    run(startup, monkeypatch, *options)
    # The file that both read is written before each, as the child here writes none.
    assert specs[2:] == ["import"] * 2 + ["save", "npz", "npz", "save", "safetensors", "safetensors"] + ["forward"] * 2
    assert re.search(r"B/16 +npz +3.00 +1.10", capsys.readouterr().out)
