import json

import pytest


@pytest.fixture
def measured(script, monkeypatch):
    """Returns the list of the cases that a run of small series measures, without child processes."""
    monkeypatch.setattr(script, "SERIES", {"image size": ({"batch": 1}, (32, 64, 128)), "depth": ({}, (1, 2))})
    monkeypatch.setattr(script, "BASE", {**script.BASE, "image size": 32, "depth": 1, "width": 64})
    measured = []

    def side_of(entrant, case, task, batch):
        measured.append((case.model, case.num_layers, task, batch))
        tokens = script.tokens_of(case, 1)
        return {"next_call": tokens / 1e3, "first_call": 1.0, "peak_after_build": 3.0 * tokens, "built": 5.0}

    monkeypatch.setattr(script, "side_of", side_of)
    return measured


def test_growth_resumes_with_missing_cases(run, measured, tmp_path, capsys):
    out = tmp_path / "growth_torch.json"
    run("--out", out, "--series", "image size", "--tasks", "train")
    assert measured == [(f"S/16@{size}", 1, "train", 1) for size in (32, 64, 128)]
    assert "train: memory exponent 1.00" in capsys.readouterr().out
    measured.clear()
    run("--out", out)
    assert len(measured) == 3 + 4
    rows = json.loads(out.read_text())["rows"]
    steps = {row["task"]: row["multiply_adds"] for row in rows if (row["series"], row["depth"]) == ("depth", 2)}
    assert steps["train"] == 3 * steps["forward"] > 0
    run("--out", out, "--plot")
    assert (tmp_path / "growth.png").stat().st_size > 10_000


def test_growth_refuses_results_of_another_machine(run, tmp_path):
    out = tmp_path / "growth_torch.json"
    out.write_text(json.dumps({"backend": "another", "rows": []}))
    with pytest.raises(SystemExit, match="Received others: backend, cores"):
        run("--out", out)
