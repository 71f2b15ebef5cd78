import json

import pytest


@pytest.mark.long
@pytest.mark.backends("jax")
def test_two_moons_run_resumes_with_missing_methods(script, tmp_path, capsys):
    options = ["--out", str(tmp_path / "moons.json"), "--seeds", "0", "--steps", "100"]
    script.main([*options, "--methods", "pseudo_labels", "meta"])
    rows = json.loads((tmp_path / "moons.json").read_text())["runs"]
    assert all(0.3 <= row[role] <= 1 for row in rows.values() for role in ("student", "teacher"))
    capsys.readouterr()
    script.main([*options, "--methods", "meta", "no_feedback"])
    output = capsys.readouterr().out
    assert "meta          seed" not in output and "no_feedback   seed 0" in output
    with pytest.raises(SystemExit, match="other settings"):
        script.main([*options[:-1], "50"])
