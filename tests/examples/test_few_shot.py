import csv
import json

import pytest

import keras_vit
from tests.data.images import write_classes
from tests.examples import scripts
from tests.tiny import TINY, randomize

SIZE = {**TINY, "image_size": 32, "patch_size": 16, "hidden_dim": 64, "num_heads": 1}


def test_few_shot_writes_tables(tmp_path, capsys):
    write_classes(tmp_path / "images", 24)
    keras_vit.save_weights(randomize(keras_vit.ViT("B/16", **SIZE)), tmp_path / "tiny.npz")
    options = ("--weights", tmp_path / "tiny.npz", "--dataset", tmp_path / "images", "--out", tmp_path / "run")
    numbers = ("--image-size", 32, "--holdout", 0.5, "--shots", 1, 3, "--draws", 2, "--batch-size", 5)
    scripts.load("few_shot.py").main([str(word) for word in (*options, *numbers)])
    output = capsys.readouterr().out
    assert "4 classes, 12 images to train on, 12 to test on" in output
    rows = json.loads((tmp_path / "run" / "few_shot.json").read_text())
    assert [row["shots"] for row in rows] == [1, 3]
    assert all(row["lowest"] <= row["accuracy"] <= row["highest"] for row in rows)
    assert scripts.last_accuracy(output) == pytest.approx(rows[-1]["accuracy"], abs=1e-4)
    with open(tmp_path / "run" / "few_shot.csv", newline="") as file:
        assert [row["shots"] for row in csv.DictReader(file)] == ["1", "3"]


def test_few_shot_invalid_argument_is_named(tmp_path):
    write_classes(tmp_path / "images", 24)
    main = scripts.load("few_shot.py").main
    with pytest.raises(SystemExit, match="nowhere.npz"):
        main(["--weights", "nowhere.npz", "--dataset", str(tmp_path / "images")])
    keras_vit.save_weights(keras_vit.ViT("B/16", **SIZE), tmp_path / "tiny.npz")
    with pytest.raises(SystemExit, match=r"`shots`. Expected at most 5, .*Received: 9"):
        options = ["--image-size", "32", "--shots", "9", "--out", str(tmp_path / "run")]
        main(["--weights", str(tmp_path / "tiny.npz"), "--dataset", str(tmp_path / "images"), *options])
