"""Runs the scripts of examples/ on small pictures."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from tests.data.images import jpeg, write_classes
from tests.examples import scripts
from tests.tiny import TINY, build, randomize

pytest.importorskip("tensorflow", reason="the scripts read folders by tf.data")
pytest.importorskip("matplotlib", reason="the scripts draw figures")


def run(script, *arguments):
    scripts.load(script).main([str(argument) for argument in arguments])


def last_accuracy(output):
    """Returns the accuracy on the last line of a script's output."""
    words = output.strip().splitlines()[-1].split()
    assert words[:2] == ["test", "accuracy"]
    return float(words[2])


def test_few_shot_writes_tables(tmp_path, capsys):
    write_classes(tmp_path / "images", 24)
    size = {**TINY, "image_size": 32, "patch_size": 16, "hidden_dim": 64, "num_heads": 1}
    keras_vit.save_weights(randomize(keras_vit.ViT("B/16", **size)), tmp_path / "tiny.npz")
    options = ("--weights", tmp_path / "tiny.npz", "--dataset", tmp_path / "images", "--out", tmp_path / "run")
    numbers = ("--image-size", 32, "--holdout", 0.5, "--shots", 1, 3, "--draws", 2, "--batch-size", 5)
    run("few_shot.py", *options, *numbers)
    output = capsys.readouterr().out
    assert "4 classes, 12 images to train on, 12 to test on" in output
    rows = json.loads((tmp_path / "run" / "few_shot.json").read_text())
    assert [row["shots"] for row in rows] == [1, 3]
    assert all(row["lowest"] <= row["accuracy"] <= row["highest"] for row in rows)
    assert last_accuracy(output) == pytest.approx(rows[-1]["accuracy"], abs=1e-4)
    assert len((tmp_path / "run" / "few_shot.csv").read_text().splitlines()) == 3


def test_few_shot_names_missing_weights(tmp_path):
    with pytest.raises(SystemExit, match="absent.npz"):
        run("few_shot.py", "--weights", "absent.npz", "--dataset", tmp_path, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_finetune_trains_only_the_head_and_saves_it(tmp_path, capsys):
    weights, out = tmp_path / "ViT-Ti_16.npz", tmp_path / "run"
    keras_vit.save_weights(keras_vit.ViTTi16(image_size=16, num_classes=5), weights)
    # The images of a class have one gray value and some noise.
    for i, value in enumerate([20, 120, 220] * 6):
        path = tmp_path / "images" / f"class{value:03d}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(value))
    options = ("--weights", weights, "--dataset", tmp_path / "images", "--out", out)
    numbers = ("--holdout", 0.34, "--epochs", 30, "--batch-size", 6, "--image-size", 32)
    run("finetune.py", *options, "--variant", "Ti/16", *numbers)
    output = capsys.readouterr().out
    assert "12 images of 3 classes to train on, 6 to test on" in output
    files = ["classes.txt", "history.png", "model.keras", "predictions.png"]
    assert sorted(file.name for file in out.iterdir()) == files
    assert (out / "classes.txt").read_text().split() == ["class020", "class120", "class220"]
    # Random features are enough to separate three gray values.
    assert last_accuracy(output) == 1.0

    model = keras.models.load_model(out / "model.keras")
    images = np.stack([np.full((32, 32, 3), value, "float32") for value in (20, 120, 220)])
    logits = model.predict(images, verbose=0)
    np.testing.assert_array_equal(logits.argmax(axis=1), [0, 1, 2], "the saved model takes raw images of 0..255")
    frozen = keras_vit.ViTTi16(image_size=32, num_classes=3, weights=weights)
    for here, there in zip(frozen.weights, model.weights, strict=True):
        if "head" not in here.path:
            np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(w) for w in (here, there)), here.path)


@pytest.mark.parametrize("format", ["npz", "keras"])
def test_inspect_model_reads_weights_and_images(format, tmp_path):
    path, out = tmp_path / f"model.{format}", tmp_path / "run"
    if format == "npz":
        keras_vit.save_weights(build(), path)
    else:
        build(pooling="gap", position_embedding="none", hidden_dim=24, rotary_embedding="dinov3").save(path)
    keras.utils.save_img(tmp_path / "image.png", np.random.default_rng(0).integers(0, 256, (20, 30, 3)))
    run("inspect_model.py", "--weights", path, "--images", tmp_path / "image.png", "--out", out)
    expected = {"distance.png", "filters.png", "report.html", "rollout.png"}
    assert {file.name for file in out.iterdir()} == expected | ({"positions.png"} if format == "npz" else set())


@pytest.mark.parametrize("method", ["masked_patch", "mae", "simmim"])
def test_pretrain_on_folder_saves_backbone_and_figure(method, tmp_path, capsys):
    write_classes(tmp_path / "images", 4, num_classes=1)
    out = tmp_path / "run"
    options = ("--dataset", tmp_path / "images", "--out", out, "--batch-size", 4, "--tensorboard", "--epochs", 1)
    run("pretrain.py", *options, "--method", method, "--hidden-dim", 32, "--num-layers", 1, "--image-size", 16)
    assert sorted(file.name for file in out.iterdir()) == ["backbone.npz", "logs", "reconstructions.png"]
    assert f"by {method}" in capsys.readouterr().out
    size = {"hidden_dim": 32, "num_layers": 1, "num_heads": 1, "mlp_dim": 64, "image_size": 16, "patch_size": 4}
    keras_vit.ViT("Ti/16", num_classes=10, weights=out / "backbone.npz", **size)


def test_train_splits_are_disjoint_and_hold_each_class():
    datasets = pytest.importorskip("sklearn.datasets", reason="the digits come with scikit-learn")
    splits = scripts.load("train.py").load_images(seed=0)
    assert [len(labels) for _, labels in splits.values()] == [1257, 180, 360]
    for images, labels in splits.values():
        assert images.dtype == "uint8" and images.shape[1:] == (8, 8, 1) and images.max() == 255
        assert np.bincount(labels, minlength=10).min() >= len(labels) // 11
    # The splits together hold each image as often as the source.
    together = np.concatenate([images for images, _ in splits.values()]).reshape(1797, -1)
    source = np.round(datasets.load_digits().data * (255 / 16)).astype("uint8")
    np.testing.assert_array_equal(np.sort(together.view("S64").ravel()), np.sort(source.view("S64").ravel()))
