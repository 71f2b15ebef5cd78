"""Runs the Python of README.md, and checks its commands, its links and its table of models."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from keras_vit import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_readme_snippets_run_in_order(shared, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("ViT-B_16-224.npz").symlink_to(shared / "weights" / "ViT-B_16-224.npz")
    Path("cats.png").symlink_to(shared / "data" / "coco_cats.png")
    # Two images of each class replace the user's folder.
    for folder in (shared / "data" / "flowers17").iterdir():
        for image in sorted(folder.iterdir())[:2]:
            link = Path("flowers17", folder.name, image.name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(image)
    namespace = {}
    predict, fine_tune, train = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    exec(predict, namespace)
    assert "Egyptian_cat" in capsys.readouterr().out
    exec(fine_tune, namespace)
    assert Path("flowers.keras").exists() and namespace["model"].output_shape == (None, 17)
    assert np.isfinite(namespace["model"].history.history["val_loss"]).all()
    exec(train, namespace)
    assert namespace["model"].history.history["val_accuracy"][-1] > 0.5
    assert "hidden_dim=96" in capsys.readouterr().out and list(Path("runs", "digits").iterdir())


def test_readme_links_lead_to_files():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_commands_of_readme_and_site_parse():
    pages = [README, *(page.read_text(encoding="utf-8") for page in (ROOT / "examples" / "site" / "docs").glob("*.md"))]
    lines = [line for page in pages for line in page.splitlines() if line.startswith("keras-vit ")]
    assert len(lines) >= 7
    for line in lines:
        assert callable(cli.build_parser().parse_args(shlex.split(line)[1:]).run)
