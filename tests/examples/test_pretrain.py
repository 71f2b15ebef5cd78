import pytest

import keras_vit
from tests.data.images import write_classes
from tests.examples import scripts

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
pytest.importorskip("matplotlib", reason="the examples draw figures")
pytest.importorskip("tensorflow", reason="it writes TensorBoard's logs and reads folders")

SMALL = ("--epochs", "1", "--hidden-dim", "32", "--num-layers", "1", "--image-size", "16", "--batch-size", "256")


@pytest.mark.long
def test_pretrain_on_digits_saves_backbone_and_figure(tmp_path):
    out = tmp_path / "run"
    output = scripts.run("pretrain.py", *SMALL, "--epochs", 2, "--method", "simmim", "--out", out, "--tensorboard")
    assert sorted(file.name for file in out.iterdir()) == ["backbone.npz", "logs", "reconstructions.png"]
    words = output.strip().splitlines()[-1].split()
    assert words[0] == "loss" and float(words[1]) > float(words[4])
    load_backbone(out / "backbone.npz", in_channels=1)


def load_backbone(path, in_channels):
    size = {"hidden_dim": 32, "num_layers": 1, "num_heads": 1, "mlp_dim": 64, "image_size": 16, "patch_size": 4}
    keras_vit.ViT("Ti/16", in_channels=in_channels, num_classes=10, weights=path, **size)


@pytest.mark.parametrize("method", ["masked_patch", "mae"])
def test_pretrain_on_folder_saves_backbone_and_figure(method, tmp_path, capsys):
    write_classes(tmp_path / "images", 4, num_classes=1)
    options = ("--dataset", str(tmp_path / "images"), "--out", str(tmp_path / "run"), "--batch-size", "4")
    scripts.load("pretrain.py").main([*SMALL, *options, "--method", method])
    assert (tmp_path / "run" / "reconstructions.png").stat().st_size > 0
    assert f"by {method}" in capsys.readouterr().out
    load_backbone(tmp_path / "run" / "backbone.npz", in_channels=3)
