import json

import numpy as np
import pytest


@pytest.mark.long
def test_semi_supervised_run_resumes_with_missing_methods(script, tmp_path, capsys):
    options = ["--quick", "--out", str(tmp_path / "semi.json")]
    script.main([*options, "--methods", "supervised", "meta_finetuned"])
    script.main(options)
    output = capsys.readouterr().out
    assert output.count("supervised      seed 0") == output.count("meta            seed 0") == 1
    content = json.loads((tmp_path / "semi.json").read_text())
    assert content["runs"].keys() == {f"{method}/0" for method in script.METHODS}
    assert all(0 <= row["test_accuracy"] <= 1 and row["curve"] for row in content["runs"].values())
    # Fine-tuning takes the last of the student's updates.
    assert content["runs"]["meta_finetuned/0"]["curve"][-1][0] == content["settings"]["updates"]
    assert (tmp_path / "semi.png").stat().st_size
    with pytest.raises(SystemExit, match="other settings"):
        script.main([*options, "--square", "1"])


def test_augmentation_shifts_flips_and_erases(script):
    images = np.arange(1, 1 + 8 * 8).reshape(1, 8, 8, 1).repeat(50, axis=0)
    weak = script.augment(images, np.random.default_rng(0))
    assert weak.shape == images.shape and set(np.unique(weak)) == set(range(1, 65))
    assert set(np.unique(np.diff(weak[:, 4, 3:5, 0]))) == {-1, 1}
    hidden = (script.augment(images, np.random.default_rng(0), square=4) == 0).sum(axis=(1, 2, 3))
    assert hidden.min() >= 4 and hidden.max() == 16
