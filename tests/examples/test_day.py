"""A user's day by the command line: own photos, training, evaluation, a competition's table, and a server."""

import csv
import json
import logging
import warnings

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import cli
from tests.export.server import Server
from tests.tiny import TEST_VIT, build

pytest.importorskip("tensorflow", reason="pipelines and servers run TensorFlow")
pytest.importorskip("matplotlib", reason="training draws its history")
NAMES = ["ant", "bee", "cat"]
# The report of a checkpoint of other classes names the weights that are new.
NEW_HEAD = ["skipped  head.weight: 4 classes in the file, 3 in the model"]


@pytest.fixture
def command(capsys, caplog):
    """Runs a command, which must succeed without any warning."""

    def run(*arguments, expected=()):
        caplog.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            status = cli.main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        assert status == 0, shown.err
        unwanted = [str(w.message) for w in caught if not issubclass(w.category, (DeprecationWarning, ResourceWarning))]
        unwanted += [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert [text for text in unwanted if not any(part in text for part in expected)] == []
        return shown.out

    return run


@pytest.mark.long
@pytest.mark.every_backend
def test_day_from_photos_to_a_server(command, tmp_path):
    for part, count in (("train", 4), ("test", 2)):
        for i in range(3 * count):
            path = tmp_path / part / NAMES[i % 3] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(i).integers(0, 256, (40, 48, 3), "uint8") // (1 + i % 3)
            Image.fromarray(pixels).save(path)
    keras_vit.save_weights(build(**TEST_VIT, num_classes=4), tmp_path / "timm", format="timm")

    run, sizes = tmp_path / "run", ["--image-size", 32, "--batch-size", 4, "--set", "steps=3", "--set", "holdout=0.5"]
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in (tmp_path / "train").rglob("*.png")]
    (tmp_path / "train.csv").write_text("\n".join(["id,species", *rows]))
    data = ["--data", tmp_path / "train.csv", "--path-column", "id", "--label-column", "species"]
    shown = command("train", *data, "--weights", tmp_path / "timm", "--out", run, *sizes, expected=NEW_HEAD)
    assert "ant 2, bee 2, cat 2" in shown
    results = json.loads((run / "results.json").read_text())
    assert (results["recipe"]["name"], results["steps"], results["class_names"]) == ("finetune", 3, NAMES)
    assert keras_vit.from_pretrained(run).config.class_names == tuple(NAMES)

    command("evaluate", run, "--data", tmp_path / "test", "--out", tmp_path / "evaluation")
    rows = list(csv.reader((tmp_path / "evaluation" / "confusion.csv").open()))
    assert rows[0][1:] == NAMES and sum(int(cell) for row in rows[1:] for cell in row[1:]) == 6

    photos = {f"{path.parent.name}/{path.stem}": path for path in sorted((tmp_path / "test").rglob("*.png"))}
    (tmp_path / "test.csv").write_text("\n".join(["image", *photos]))
    table = [tmp_path / "test.csv", "--images", tmp_path / "test", "--path-column", "image", "--extension", ".png"]
    # The columns have the names of the training table.
    command("predict", *table, "--weights", run, "--csv", tmp_path / "submission.csv")
    submission = list(csv.reader((tmp_path / "submission.csv").open()))
    assert submission[0] == ["id", "species"] and [row[0] for row in submission[1:]] == list(photos)
    answers = json.loads(command("predict", *table, "--weights", run, "--json"))
    best = {answer["path"]: answer["classes"][0] for answer in answers}
    assert {name: top["label"] for name, top in best.items()} == dict(submission[1:])

    command("export", run, "--to", "saved_model", "--out", tmp_path / "server" / "1")
    contents = np.array([path.read_bytes() for path in photos.values()])
    served = Server(tmp_path / "server" / "1").ask("serving_bytes", image_bytes=contents)
    assert [label.decode() for label in served["labels"][:, 0]] == [best[name]["label"] for name in photos]
    np.testing.assert_allclose(served["scores"][:, 0], [best[name]["probability"] for name in photos], rtol=1e-3)
