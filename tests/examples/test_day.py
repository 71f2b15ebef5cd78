"""A user's day by the command line: own photos, training, evaluation, a competition's table, and a server."""

import csv
import json
import logging
import socket
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
NAMES = ["1", "10", "2"]
# In a table, numbers would be class numbers, so the table contains these names.
SPECIES = {"1": "ant", "10": "bee", "2": "cat"}
# The report of a checkpoint of other classes names the weights that are new.
NEW_HEAD = ["skipped  head.weight: 4 classes in the file, 3 in the model"]
TURN_BACK = Image.Exif()
TURN_BACK[0x0112] = 6


def picture(kind, seed):
    """Returns an upright picture. Class "1" is bright at the top, "2" at the left, "10" everywhere."""
    rows, columns = np.mgrid[:40, :48]
    bright = {"1": rows < 20, "2": columns < 24, "10": rows >= 0}[kind]
    noise = np.random.default_rng(seed).integers(0, 60, (40, 48, 3))
    return (np.where(bright[..., None], 190, 20) + noise).astype("uint8")


def write_photos(folder, kind, seed):
    """Writes each picture plain, turned with an EXIF tag, and with hidden colors under a transparent corner."""
    folder.mkdir(parents=True)
    upright = picture(kind, seed)
    Image.fromarray(upright).save(folder / f"{seed}_plain.png")
    Image.fromarray(np.rot90(upright).copy()).save(folder / f"{seed}_turned.png", exif=TURN_BACK)
    alpha = np.full(upright.shape[:2], 255, "uint8")
    alpha[25:, 30:] = 0
    Image.fromarray(np.dstack([upright, alpha])).save(folder / f"{seed}_clear.png")
    white = np.where(alpha[..., None] == 0, 255, upright).astype("uint8")
    Image.fromarray(white).save(folder / f"{seed}_white.png")


@pytest.fixture
def command(monkeypatch, capsys, caplog):
    """Runs a command without a network. The command must succeed without any warning."""

    def refuse(self, address, *rest):
        if self.family in (socket.AF_INET, socket.AF_INET6):
            raise AssertionError(f"The command opened a connection to {address}")
        return connect(self, address, *rest)

    connect = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", refuse)

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
    for seed, name in enumerate(NAMES * 2):
        part = "train" if seed < 3 else "test"
        write_photos(tmp_path / part / name, name, seed)
    keras_vit.save_weights(build(**TEST_VIT, num_classes=4), tmp_path / "timm", format="timm")

    options = ["--weights", tmp_path / "timm", "--image-size", 32, "--batch-size", 4]
    options += ["--set", "steps=3", "--set", "holdout=0.5"]
    run = tmp_path / "run"
    command("train", "--data", tmp_path / "train", "--out", run, *options, expected=NEW_HEAD)
    assert json.loads((run / "results.json").read_text())["class_names"] == NAMES
    assert keras_vit.from_pretrained(run).config.class_names == tuple(NAMES)

    paths = sorted((tmp_path / "train").rglob("*.png"))
    rows = [f"{path.relative_to(tmp_path)},{SPECIES[path.parent.name]}" for path in paths]
    (tmp_path / "train.csv").write_text("\n".join(["id,species", *rows]))
    data = ["--data", tmp_path / "train.csv", "--path-column", "id", "--label-column", "species"]
    shown = command("train", *data, "--out", tmp_path / "table_run", *options, expected=NEW_HEAD)
    assert "ant 2, bee 2, cat 2" in shown
    results = json.loads((tmp_path / "table_run" / "results.json").read_text())
    species = list(SPECIES.values())
    assert (results["recipe"]["name"], results["steps"], results["class_names"]) == ("finetune", 3, species)
    assert keras_vit.from_pretrained(tmp_path / "table_run").config.class_names == tuple(species)

    command("evaluate", run, "--data", tmp_path / "test", "--out", tmp_path / "evaluation")
    rows = list(csv.reader((tmp_path / "evaluation" / "confusion.csv").open()))
    assert rows[0][1:] == NAMES and sum(int(cell) for row in rows[1:] for cell in row[1:]) == 12

    photos = {f"{path.parent.name}/{path.stem}": path for path in sorted((tmp_path / "test").rglob("*.png"))}
    (tmp_path / "test.csv").write_text("\n".join(["image", *photos]))
    table = [tmp_path / "test.csv", "--images", tmp_path / "test", "--path-column", "image", "--extension", ".png"]
    columns = ["--id-column", "photo", "--label-column", "kind", "--csv", tmp_path / "submission.csv"]
    command("predict", *table, "--weights", run, *columns)
    submission = list(csv.reader((tmp_path / "submission.csv").open()))
    assert submission[0] == ["photo", "kind"] and [row[0] for row in submission[1:]] == list(photos)
    # Without these options, the columns have the names of the training table.
    command("predict", *table, "--weights", tmp_path / "table_run", "--csv", tmp_path / "species.csv")
    by_table = list(csv.reader((tmp_path / "species.csv").open()))
    assert by_table[0] == ["id", "species"] and [row[0] for row in by_table[1:]] == list(photos)
    assert {row[1] for row in by_table[1:]} <= set(species)
    answers = json.loads(command("predict", *table, "--weights", run, "--json"))
    best = {answer["path"]: answer["classes"][0] for answer in answers}
    assert {name: top["label"] for name, top in best.items()} == dict(submission[1:])
    # The same picture has the same answer, however the file stores it.
    for seed, name in enumerate(NAMES, start=3):
        for one, other in (("plain", "turned"), ("clear", "white")):
            first, second = (best[f"{name}/{seed}_{kind}"]["probability"] for kind in (one, other))
            assert first == pytest.approx(second, rel=1e-4)

    command("export", run, "--to", "saved_model", "--out", tmp_path / "server" / "1")
    contents = np.array([path.read_bytes() for path in photos.values()])
    served = Server(tmp_path / "server" / "1").ask("serving_bytes", image_bytes=contents)
    assert [label.decode() for label in served["labels"][:, 0]] == [best[name]["label"] for name in photos]
    np.testing.assert_allclose(served["scores"][:, 0], [best[name]["probability"] for name in photos], rtol=1e-3)
