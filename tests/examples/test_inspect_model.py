import keras
import numpy as np
import pytest

import keras_vit
from tests.examples import scripts
from tests.tiny import build

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
pytest.importorskip("matplotlib", reason="the examples draw figures")

FIGURES = ["distance.png", "filters.png", "positions.png", "report.html", "rollout.png"]


@pytest.mark.long
def test_inspect_model_trains_on_digits_and_draws(tmp_path):
    output = scripts.run("inspect_model.py", "--epochs", 1, "--batch-size", 512, "--out", tmp_path / "run")
    digits = [f"digit_{label}.png" for label in range(4)]
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == sorted(FIGURES + digits)
    words = output.strip().splitlines()[-1].split()
    assert words[:3] == ["mean", "attention", "distance"] and float(words[3]) > 0


@pytest.mark.parametrize("format", ["npz", "keras"])
def test_inspect_model_reads_weights_and_images(format, tmp_path):
    model = (
        build()
        if format == "npz"
        else build(pooling="gap", position_embedding="none", hidden_dim=24, rotary_embedding="dinov3")
    )
    path = tmp_path / f"model.{format}"
    model.save(path) if format == "keras" else keras_vit.save_weights(model, path)
    keras.utils.save_img(tmp_path / "image.png", np.random.default_rng(0).integers(0, 256, (20, 30, 3)))
    options = ["--weights", path, "--images", tmp_path / "image.png", "--out", tmp_path / "run"]
    scripts.load("inspect_model.py").main(list(map(str, options)))
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == [
        f for f in FIGURES if f != "positions.png" or format == "npz"
    ]


def test_weights_without_images_are_refused(capsys):
    with pytest.raises(SystemExit):
        scripts.load("inspect_model.py").parse_arguments(["--weights", "model.npz"])
    assert "expected both --weights and --images, or neither" in capsys.readouterr().err
