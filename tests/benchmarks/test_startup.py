import re


def test_startup_child_measures_each_step(script, tmp_path):
    spec = {"model": "Ti/16", "num_layers": 1, "file": str(tmp_path / "Ti16")}
    assert script.child({**spec, "step": "save"}) == {}
    for step in script.STEPS:
        found = script.child({**spec, "step": step})
        assert found["seconds"] > 0
        if step != "import":
            assert found["bytes"] == 4 * (192 * (3 * 16**2 + 1 + 1 + 197 + 1002) + 12 * 192**2 + 13 * 192 + 1000)


def test_startup_run_resumes_with_missing_steps(script, run, tmp_path, monkeypatch, capsys):
    specs = []

    def in_child(spec):
        specs.append(spec["step"])
        return {"seconds": 2.0} if spec["step"] == "import" else {"seconds": 3.0, "peak": 1.1}

    monkeypatch.setattr(script, "in_child", in_child)
    options = ("--out", tmp_path / "a.json", "--models", "B/16", "--rounds", 2)
    run(*options, "--steps", "build")
    assert specs == ["build"] * 2
    run(*options)
    # Both formats save the file first, because this child writes no file.
    assert specs[2:] == ["import"] * 2 + ["save", "npz", "npz", "save", "safetensors", "safetensors"] + ["forward"] * 2
    assert re.search(r"B/16 +npz +3.00 +1.10", capsys.readouterr().out)
