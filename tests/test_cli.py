import argparse
import contextlib
import csv
import json
import os
import pathlib
import re
import shlex
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import cli
from keras_vit.weights.read import open_checkpoint
from keras_vit.weights.write import write_safetensors
from tests.golden import GOLDEN_FOLDER
from tests.tiny import build, randomize

NAMES = ["ant", "bee", "cat", "dog", "emu"]
ESCAPES = "\x1b]0;owned\x07\x1b[2J"
WITHOUT_EFFECT = [
    (("model.npz", "--to", "onnx", "--precision", "float8"), "'float8'"),
    (("model.npz", "--to", "onnx", "--labels", "labels.txt"), "--labels"),
    (("model.npz", "--to", "litert", "--attention"), "--attention"),
    (("model.npz", "--to", "saved_model", "--precision", "int8"), "--precision"),
    (("own.keras", "--to", "onnx"), "your own layers"),
]


@pytest.fixture
def file(tmp_path):
    keras_vit.save_weights(randomize(build()), tmp_path / "model.npz")
    return tmp_path / "model.npz"


def run(capsys, *arguments):
    return cli.main([str(a) for a in arguments]), *capsys.readouterr()


def test_weights_list_names_published_checkpoints(capsys):
    status, out, _ = run(capsys, "weights", "list", "ViTB16")
    assert status == 0 and "ViTB16.imagenet21k" in out and "ViTL16" not in out
    assert len(run(capsys, "weights", "list")[1].splitlines()) == len(keras_vit.list_weights()) + 1
    out = run(capsys, "weights", "list", "vits8", "--columns", "name,license,params")[1]
    assert out.split() == ["name", "license", "params", "ViTS8.dino", "Apache-2.0", "22M"]


def test_weights_show_describes_a_file(capsys, file):
    status, out, _ = run(capsys, "weights", "show", file)
    rows = dict(line.split(maxsplit=1) for line in out.splitlines() if len(line.split(maxsplit=1)) == 2)
    assert status == 0 and rows["source"] == "official" and rows["activation"] == "gelu_tanh"
    assert rows["model"] == "hidden_dim 12, 2 blocks, 3 heads, mlp_dim 20, patch 4 x 4, grid 4 x 4, 5 classes"


def test_settings_missing_in_a_state_dict_are_options(capsys, tmp_path):
    bare = tmp_path / "bare.safetensors"
    checkpoint = open_checkpoint(GOLDEN_FOLDER / "timm_vit.safetensors")
    write_safetensors(bare, dict(checkpoint.read(checkpoint.entries)), {})
    keras.utils.save_img(tmp_path / "a.png", np.zeros((20, 30, 3)), scale=False)
    assert re.search("to pass +preprocessing, num_heads", run(capsys, "weights", "show", bare)[1])
    predict = ("predict", tmp_path / "a.png", "--weights", bare)
    status, _, error = run(capsys, *predict)
    assert status == 1 and "use --set for each setting on the command line" in error and "num_heads: " in error
    given = ("mean=[0.4, 0.5, 0.6]", "std=0.5", "interpolation=bicubic", "crop_fraction=0.9")
    given = tuple(f"preprocessing.{text}" for text in given)
    settings = [argument for setting in given for argument in ("--set", setting)]
    assert run(capsys, *predict, "--num-heads", 4, *settings)[0] == 0


def test_convert_there_and_back_gives_the_same_arrays(capsys, file, tmp_path):
    assert run(capsys, "weights", "convert", file, tmp_path / "folder", "--to", "huggingface")[0] == 0
    status, out, _ = run(capsys, "weights", "convert", tmp_path / "folder", tmp_path / "back.npz", "--to", "npz")
    assert status == 0 and "back.npz" in out
    with np.load(file) as before, np.load(tmp_path / "back.npz") as after:
        assert {k: before[k].tobytes() for k in before} == {k: after[k].tobytes() for k in after}


def test_predict_prints_a_table(capsys, file, tmp_path):
    image = tmp_path / "a.png"
    keras.utils.save_img(image, np.zeros((20, 30, 3)), scale=False)
    # This name is not UTF-8.
    with contextlib.suppress(OSError):
        image = image.rename(tmp_path / os.fsdecode(b"caf\xe9.png"))
    status, out, _ = run(capsys, "predict", image, image, "--weights", file, "--top", 2)
    lines = out.splitlines()
    assert status == 0 and len(lines) == 4 and ".png" in lines[0] and lines[:2] == lines[2:]


def test_names_reach_the_terminal_escaped(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [f"ca{ESCAPES}t", '=HYPERLINK("http://x","y")', "a\nb"]
    keras_vit.save_weights(build(num_classes=3, class_names=names, include_preprocessing=True), "own.npz")
    strange = {"blocks.0." + ESCAPES: np.zeros(3), **np.load("own.npz")}
    write_safetensors(tmp_path / "strange.safetensors", strange, {})
    pictures = [f"b{ESCAPES}.png", "n\nl.png", "=1+1.png"]
    for path in pictures:
        keras.utils.save_img(path, np.zeros((16, 16, 3)))
    broken = tmp_path / f"bad{ESCAPES}.png"
    broken.write_text("x")
    predict = ("predict", *pictures, broken, "--weights", "own.npz")
    calls = [("weights", "show", "strange.safetensors"), ("weights", "show", "own.npz")]
    calls += [("weights", "convert", "strange.safetensors", "x.npz", "--to", "npz")]
    for call in (*calls, predict, (*predict, "--json")):
        _, out, error = run(capsys, *call)
        assert "\x1b" not in out + error, call
    assert {names[0], names[2]} <= {each["label"] for row in json.loads(out) for each in row["classes"]}
    for options, first in (((), "=1+1.png"), (("--escape-formulas",), "'=1+1.png")):
        table = ("predict", "=1+1.png", "--weights", "own.npz", "--csv", "s.csv", "--top", "3", *options)
        assert run(capsys, *table)[0] == 0
        with open("s.csv", newline="") as file:
            _, row = csv.reader(file)
        assert row[0] == first and ("'" + names[1] in row) == bool(options)


def test_predict_writes_a_csv_row_for_each_image(capsys, caplog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "images"):
        pathlib.Path(folder).mkdir()
    randomize(build(include_preprocessing=True, class_names=NAMES)).save("run/model.keras")
    for i in (0, 2):
        keras.utils.save_img(f"images/{i}.png", np.full((9, 9, 3), 100.0 * i), scale=False)
    pathlib.Path("images/1.png").write_text("no image")
    pathlib.Path("test.csv").write_text("image\nimages/2.png\nimages/1.png\nimages/0.png\n")

    command = ("predict", "test.csv", "--weights", "run")
    status, out, err = run(capsys, *command, "--csv", "submission.csv")
    assert status == 0 and "3 images" in out, err
    assert "1 of 3 images could not be read" in caplog.text
    rows = [line.split(",") for line in pathlib.Path("submission.csv").read_text().splitlines()]
    assert rows[0] == ["image", "label", "probability"] and rows[2] == ["images/1.png", "", ""]
    assert [row[0] for row in rows[1:]] == ["images/2.png", "images/1.png", "images/0.png"]
    assert run(capsys, *command, "--label-column", "species", "--csv", "two.csv")[0] == 0
    two = [line.split(",") for line in pathlib.Path("two.csv").read_text().splitlines()]
    assert two == [["image", "species"], *(row[:2] for row in rows[1:])]

    status, out, _ = run(capsys, "predict", "images", "--weights", "run/model.keras", "--json")
    answers = {pathlib.Path(answer["path"]).name: answer["classes"] for answer in json.loads(out)}
    assert status == 0 and len(answers["0.png"]) == 5 and answers["1.png"] == []
    assert rows[1][1] == answers["2.png"][0]["label"] in NAMES
    np.testing.assert_allclose(float(rows[3][2]), answers["0.png"][0]["probability"], rtol=1e-4)
    for options, message in (
        (("--label-column", "species", "--json"), "--label-column need --csv"),
        (("--csv", "no/a.csv"), "there is no folder"),
    ):
        status, _, err = run(capsys, *command, *options)
        assert status == 1 and message in err
    build(include_preprocessing=True, num_classes=1, class_names=["cancer"]).save("run/model.keras")
    status, _, err = run(capsys, *command, "--label-column", "species", "--csv", "one.csv")
    assert status == 1 and "two or more classes" in err and not pathlib.Path("one.csv").exists()
    assert run(capsys, *command, "--top", "1", "--csv", "one.csv")[0] == 0
    assert pathlib.Path("one.csv").read_text().splitlines()[1].startswith("images/2.png,cancer,0.")


def test_evaluate_writes_confusions_and_mistakes(capsys, tmp_path):
    model = build(num_classes=3, include_preprocessing=True, class_names=NAMES[:3], head_init="zeros")
    model.save(tmp_path / "model.keras")
    (tmp_path / "test").mkdir()
    for i in range(4):
        keras.utils.save_img(tmp_path / "test" / f"{i}.png", np.full((9, 9, 3), 60.0 * i), scale=False)
    (tmp_path / "test.csv").write_text("id,animal\n0,ant\n1,bee\n2,ant\n3,bee\n")
    command = ["evaluate", tmp_path / "model.keras", "--data", tmp_path / "test.csv", "--images", tmp_path / "test"]
    command += ["--path-column", "id", "--label-column", "animal", "--extension", ".png", "--out", tmp_path / "out"]
    status, out, err = run(capsys, *command)
    assert status == 0 and "4 images: top_1 0.5000" in out, err
    rows = [line.split() for line in out.splitlines()[2:6]]
    assert rows == [["class", "images", "accuracy"], ["bee", "2", "0.0000"], ["ant", "2", "1.0000"], ["cat", "0", "-"]]
    lines = (tmp_path / "out" / "confusion.csv").read_text().split()
    assert lines[-3:] == ["ant,2,0,0", "bee,2,0,0", "cat,0,0,0"]
    for picture in ("confusion.png", "mistakes.png"):
        assert (tmp_path / "out" / picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("package", ["tensorflow", "matplotlib"])
def test_train_names_the_missing_package(package, capsys, tmp_path, monkeypatch):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(4):
            keras.utils.save_img(tmp_path / name / f"{i}.png", np.zeros((9, 9, 3)), scale=False)
    monkeypatch.setitem(sys.modules, package, None)
    status, _, err = run(capsys, "train", "--recipe", "finetune_pets", "--data", tmp_path, "--out", tmp_path / "run")
    assert status == 1 and err.count("\n") == 1 and err.endswith(f": pip install {package}\n")
    assert not (tmp_path / "run").exists()


def test_version_is_printed_and_ctrl_c_exits_with_130(capsys, monkeypatch):
    for arguments, code, shown in (
        (["--version"], 0, f"keras-vit {keras_vit.__version__}\n"),
        (["train", "--data", "photos", "--bach-size", "8"], 2, "--bach-size. Did you mean '--batch-size'?"),
    ):
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        assert end.value.code == code and shown in "".join(capsys.readouterr())

    def stopped(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(keras_vit.models.zoo, "containing", stopped)
    assert run(capsys, "weights", "list") == (130, "", "keras-vit: stopped.\n")


@pytest.mark.backends("tensorflow")
def test_export_writes_labels_of_run_file_or_imagenet(capsys, file, tmp_path):
    image = tmp_path / "a.png"
    keras.utils.save_img(image, np.zeros((20, 30, 3)), scale=False)
    (tmp_path / "run").mkdir()
    build(class_names=NAMES).save(tmp_path / "run" / "model.keras")
    command = ("export", tmp_path / "run", "--to", "saved_model", "--out")
    status, out, err = run(capsys, *command, tmp_path / "vit" / "1", "--verify", image, "--attention")
    assert status == 0 and "on 3 images" in out, err
    assert (tmp_path / "vit" / "1" / "assets" / "labels.txt").read_text().split()[1] == "bee"
    described = keras_vit.export.describe(tmp_path / "vit" / "1")
    assert "labels string (None, 5)" in described and "serving_attention: " in described
    for version, message in (("1", "which exists"), ("latest", "named by a number")):
        status, _, err = run(capsys, *command, tmp_path / "vit" / version)
        assert status == 1 and message in err

    (tmp_path / "labels.txt").write_text("\n".join("abcde"), encoding="utf-8")
    build(num_classes=1000).save(tmp_path / "imagenet.keras")
    own_labels = ("--labels", tmp_path / "labels.txt")
    for model, options, second in ((file, own_labels, "b"), (tmp_path / "imagenet.keras", (), "goldfish")):
        folder = tmp_path / second / "1"
        assert run(capsys, "export", model, "--to", "saved_model", "--out", folder, *options)[0] == 0
        assert (folder / "assets" / "labels.txt").read_text().split()[1] == second


@pytest.mark.parametrize("arguments, message", WITHOUT_EFFECT)
def test_export_refuses_options_without_effect(capsys, file, tmp_path, monkeypatch, arguments, message):
    class Own(keras.layers.Layer):
        pass

    keras.Sequential([keras.Input((4,)), Own()]).save(tmp_path / "own.keras")
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, "export", *arguments, "--out", tmp_path / "out")
    assert status == 1 and message in err and not (tmp_path / "out").exists()


def test_recipes_are_listed_and_shown(capsys):
    status, out, _ = run(capsys, "recipes")
    assert status == 0 and "finetune_pets" in out and "finetune   " in out and len(out.splitlines()) >= 10
    status, out, _ = run(capsys, "recipes", "finetune_pets")
    assert status == 0 and "keras-vit train --recipe finetune_pets --data oxford_iiit_pet" in out


def tiny_model(*settings):
    """Returns command-line options that set the fields of a tiny model, and other settings."""
    fields = ("variant=Ti/4", "model.hidden_dim=12", "model.num_heads=3", "model.mlp_dim=20", "holdout=0.5", *settings)
    return [argument for setting in fields for argument in ("--set", setting)]


@pytest.mark.long
def test_train_reads_a_table_by_the_default_recipe(capsys, tmp_path):
    (tmp_path / "images").mkdir()
    rows = [f"{i}.png,{name}" for i, name in enumerate(["cat", "dog"] * 4)]
    for i in range(8):
        keras.utils.save_img(tmp_path / "images" / f"{i}.png", np.full((9, 9, 3), 50 + 100 * (i % 2)), scale=False)
    (tmp_path / "train.csv").write_text("\n".join(["id,animal", *rows]))
    options = ["--data", tmp_path / "train.csv", "--images", tmp_path / "images", "--path-column", "id"]
    options += ["--label-column", "animal", "--out", tmp_path / "run", "--weights", "none"]
    options += [*tiny_model("model.num_layers=1", "image_size=8", "steps=3"), "--batch-size", 16]
    options += ["--learning-rate", 0.001]
    status, out, err = run(capsys, "train", *options)
    assert status == 0, err
    assert "4 images, 2 outputs" in out and "cat 2, dog 2" in out and "the model takes 0 to 255" in out
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    recipe = [results["recipe"][name] for name in ("name", "batch_size", "learning_rate")]
    assert (recipe, results["class_names"], results["steps"]) == (["finetune", 16, 0.001], ["cat", "dog"], 3)

    (tmp_path / "test.csv").write_text("image\n0.png\n")
    predict = ["predict", tmp_path / "test.csv", "--images", tmp_path / "images", "--weights", tmp_path / "run"]
    for options, header in (((), "id,animal"), (("--id-column", "name"), "name,animal"), (("--top", 1), "image,label")):
        status, _, err = run(capsys, *predict, "--csv", tmp_path / "out.csv", *options)
        assert status == 0, err
        assert (tmp_path / "out.csv").read_text().startswith(header)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["train", "--data", "nowhere.csv"], "'nowhere.csv', which does not exist in the current folder"),
        (["recipes", "finetune_pet"], "Did you mean 'finetune_pets'?"),
        (["train", "--data", ".", "--set", "image_siz=3"], "Did you mean 'image_size'?"),
        (["weights", "show", "nowhere.npz"], "nowhere.npz"),
        (["weights", "list", "ViTX"], "Expected one of"),
        (["weights", "convert", "FILE", "out.safetensors", "--to", "timm"], "activation"),
        (["predict", __file__, "--weights", "FILE", "--set", "num_layer=3"], "Did you mean 'num_layers'?"),
        (["inspect", "FILE", "."], "'.', which is a folder"),
        (["evaluate", "FILE", "--data", ".", "--extension", "x"], "--extension only if --data is a CSV file"),
        (["export", "FILE", "--to", "saved_model", "--out", "vit"], "as 'vit/1'"),
    ],
)
def test_errors_are_one_line_without_traceback(capsys, file, arguments, message):
    status, _, err = run(capsys, *(file if a == "FILE" else a for a in arguments))
    assert status == 1 and err.startswith("keras-vit: ") and message in err


def parsers(parser, name="keras-vit"):
    """Yields each command's name and parser."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, own in action.choices.items():
                yield from parsers(own, f"{name} {word}")


COMMANDS = dict(parsers(cli.build_parser()))


def test_help_lists_every_command():
    text = cli.build_parser().format_help()
    listed = re.findall(r"^    (\w+)  ", text, re.MULTILINE)
    assert [f"keras-vit {name}" for name in listed] == [name for name in COMMANDS if name.count(" ") == 1]
    assert "KERAS_BACKEND" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_that_parse(name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([*name.split()[1:], "--help"])
    assert end.value.code == 0
    shown, _, examples = capsys.readouterr().out.partition("\nexamples:\n")
    # The usage is followed by a sentence.
    assert re.search(r"\n\n[A-Z].*\.\n\n", shown)
    lines = re.findall(r"^  (keras-vit .*)", examples, re.MULTILINE)
    assert lines and all(line.startswith(name) for line in lines)
    for line in lines:
        args = cli.build_parser().parse_args(shlex.split(line)[1:])
        assert callable(args.run) and COMMANDS[name].get_default("run") in (None, args.run)
