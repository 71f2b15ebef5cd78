import json

import pytest

from tests.benchmarks.conftest import BENCHMARKS


@pytest.mark.long
@pytest.mark.backends("jax")
def test_two_moons_run_resumes_with_missing_methods(script, tmp_path, capsys):
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


def test_only_uda_separates_the_moons_in_the_results():
    rows = json.loads((BENCHMARKS / "results" / "two_moons.json").read_text())["runs"]
    for seed in range(5):
        row = {method: rows[f"{method}/{seed}"] for method in ("pseudo_labels", "meta", "no_feedback", "meta_alone")}
        assert all(row["pseudo_labels"][role] < 0.9 < 0.96 < row["meta"][role] for role in ("student", "teacher"))
        assert abs(row["no_feedback"]["teacher"] - row["meta"]["teacher"]) < 0.005
        assert all(row["meta_alone"][role] < 0.9 for role in ("student", "teacher"))
