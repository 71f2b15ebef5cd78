import importlib
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="it writes the .pth files")
# Damage is noticed before the backend takes part.
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def fuzz(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("fuzz")


FORMATS = (
    *("npz", "safetensors", "keras", "official_npz", "modern_pth"),
    *("weights_h5", "timm_safetensors", "huggingface", "legacy_pth"),
)


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_checkpoints_are_refused_or_read_as_if_whole(fuzz, name, tmp_path):
    assert set(FORMATS) == set(fuzz.CHECKSUM)
    files = fuzz.Files(tmp_path, name)
    outcomes = [files.run(fuzz.rng_of(0, name, case))[0] for case in range(10)]
    # Without a checksum, some damage cannot be noticed.
    assert set(outcomes) <= ({"refused", "loaded"} if fuzz.CHECKSUM[name] else {"refused", "loaded", "silent"})
    assert "refused" in outcomes


def test_a_case_is_the_same_each_time(fuzz):
    hostile = importlib.import_module("hostile")
    for case in range(20):
        requests = [hostile.request(hostile.rng_of(0, "requests", case)) for _ in range(2)]
        assert requests[0] == requests[1]
    data = np.random.default_rng(0).bytes(2000)
    assert all(hostile.damaged(data, hostile.rng_of(0, "x", case)) != data for case in range(100))


def test_what_is_wrong_is_counted(fuzz, tmp_path):
    """A loader that takes damaged files, changes the model before it fails, or fails by another error."""
    files = fuzz.Files(tmp_path, "npz")
    whole = files.checkpoints.load_weights

    def change(model, path):
        model.set_weights([w + 1 for w in model.get_weights()])

    def fail(error):
        raise error

    cases = {
        "silent": change,
        "changed": lambda model, path: (change(model, path), whole(model, path.parent / "none.npz")),
        "crash": lambda model, path: fail(TypeError("no")),
        "unclear": lambda model, path: fail(ValueError("no")),
        "loaded": lambda model, path: whole(model, files.whole),
    }
    for outcome, load in cases.items():
        files.checkpoints.load_weights = load
        assert files.load(files.whole.with_name("bad.npz"))[0] == outcome
    rows = [fuzz.finding("files", name, "silent", "") for name in ("npz", "weights_h5")]
    assert [fuzz.is_failure(row) for row in rows] == [True, False]


def test_the_command_writes_its_results(fuzz, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["fuzz.py", "--only", "pictures", "--cases", "2", "--out", str(tmp_path / "f.json")]
    )
    assert fuzz.main() in (0, 1)
    results = json.loads((tmp_path / "f.json").read_text())
    row = results["pictures"]["pictures"]
    assert sum(row.get(name, 0) for name in ("refused", "loaded", "unclear")) == 2
    assert "seed 0" in capsys.readouterr().out
