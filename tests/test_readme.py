"""Runs the Python of README.md, and checks its commands, links and figures."""

import importlib
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from keras_vit import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"
WORDS = " ".join(README.split())


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def result(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def short(version):
    return ".".join(version.split(".")[:2])


@pytest.mark.long
def test_readme_snippets_run_in_order(shared, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(shared / "weights"))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    Path("cats.png").symlink_to(shared / "data" / "coco_cats.png")
    # Two images of each class replace the user's folder.
    for folder in (shared / "data" / "flowers17").iterdir():
        for image in sorted(folder.iterdir())[:2]:
            link = Path("flowers17", folder.name, image.name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(image)
    namespace = {}
    predict, fine_tune, train = blocks("python")
    exec(predict, namespace)
    assert "Egyptian_cat" in capsys.readouterr().out
    exec(fine_tune, namespace)
    assert Path("flowers.keras").exists() and namespace["model"].output_shape == (None, 17)
    assert np.isfinite(namespace["model"].history.history["val_loss"]).all()
    exec(train, namespace)
    assert namespace["model"].history.history["val_accuracy"][-1] > 0.9
    assert "hidden_dim=96" in capsys.readouterr().out and list(Path("runs", "digits").iterdir())


def test_readme_links_lead_to_files():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_commands_of_readme_and_site_parse():
    docs = ROOT / "examples" / "site" / "docs"
    pages = [README, *(page.read_text(encoding="utf-8") for page in docs.rglob("*.md"))]
    lines = [line for page in pages for line in page.replace("\\\n", "").splitlines() if line.startswith("keras-vit ")]
    assert len(lines) >= 20
    assert all(callable(cli.build_parser().parse_args(shlex.split(line)[1:]).run) for line in lines)


def test_readme_is_short_and_opens_with_the_prediction():
    assert len(README.splitlines()) <= 170
    assert [line for block in blocks(r"\w*") for line in block.splitlines() if len(line) > 80] == []
    opening = README.partition("\n## ")[0]
    assert "decode_predictions" in opening and "![" in opening and "pip install" in opening
    main_job, tests = blocks("sh")
    assert "examples/train.py" in main_job and tests.count("pytest") == 3


def test_readme_speed_table_equals_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "site"))
    tables = importlib.import_module("result_tables")
    rows = [line for line in tables.peers().replace("&nbsp;", " ").splitlines() if ", against " in line]
    assert [line for line in README.splitlines() if ", against " in line] == rows and len(rows) >= 8
    forward = [float(row.split("|")[2].split()[0]) for row in rows]
    main = [row for _, row in tables.throughput_rows() if tables.is_main_case(row)]
    ((version, processor),) = {(r["run"]["versions"]["keras_vit"], r["run"]["processor"]) for r in main}
    assert f"ViT-B/16 was {min(forward):.2f} to {max(forward):.2f} times as fast" in WORDS
    assert f"ViT-B/16 of version {short(version)} at 224" in WORDS and "Intel(R) Xeon(R)" in processor
    gpu = [[float(row.split("|")[i].split()[0]) for row in rows if row.split("|")[i].strip()] for i in (4, 5)]
    (low, high), (low_step, high_step) = ((min(column), max(column)) for column in gpu)
    assert f"and {low:.2f} to {high:.2f} times on a GPU" in WORDS and "on an NVIDIA H200" in WORDS
    assert f"where a training step was {low_step:.2f} to {high_step:.2f} times as fast" in WORDS
    assert "on two Intel Xeon cores" in WORDS
    assert result(tables.GPU)["versions"]["keras_vit"].startswith(short(version))


def test_readme_accuracies_equal_the_results():
    tuned = [result(f"train_{name}_flowers17") for name in ("finetune", "lora")]
    assert {f"{run['test']['accuracy']:.4f} {short(run['keras_vit'])}" for run in tuned} == {"0.9985 0.1"}
    assert "for 8 minutes" in WORDS and all(round(run["seconds"] / 60) == 8 for run in tuned)
    assert "version 0.1 reached a test accuracy of 0.9985" in WORDS
    rows = result("readme")["rows"]
    assert [row["backend"] for row in rows] == ["jax", "tensorflow", "torch"]
    low, *_, high = sorted(row["accuracy"] for row in rows)
    assert low >= 0.95 and f"a validation accuracy of {low:.2f} to {high:.2f} on the three backends" in WORDS
    assert f"within {max(row['cpu_seconds'] for row in rows):.0f} s of CPU time" in WORDS
