"""The README's Python, run as it stands, and its table of exports."""

import importlib.util
import re
import shlex
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit import cli
from keras_vit.models import builders

README = (Path(__file__).parents[1] / "README.md").read_text()


def snippets():
    return re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="examples/train.py is what trains on each backend")
def test_the_first_snippet_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(snippets()[0], namespace)
    assert namespace["model"].history.history["val_accuracy"][-1] > 0.5
    exec(snippets()[1], namespace)
    assert namespace["model"].history.history["accuracy"][-1] > 0.5 and list((tmp_path / "runs" / "digits").iterdir())
    assert keras.saving.load_model("digits.keras").output_shape == (None, 10)


def test_the_snippets_on_pretrained_weights_run(shared, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ViT-B_16-224.npz").symlink_to(shared / "weights" / "ViT-B_16-224.npz")
    images = np.load(shared / "weights" / "ViT-B_16-224.reference.npz")["images"][:2]
    namespace = {"images": images}
    exec("import keras\nimport keras_vit", namespace)
    for snippet in snippets()[2:]:
        # A process of its own elsewhere, which tests/export runs on each backend.
        if "export" not in snippet or keras.backend.backend() == "tensorflow":
            exec(snippet, namespace)
    printed = capsys.readouterr().out
    assert "Egyptian_cat" in printed and "14 x 14 -> 20 x 12" in printed
    assert [x.shape for x in namespace["maps"].outputs] == [(None, 14, 14, 768)] * 3
    assert namespace["rollout"].shape == (2, 14, 14) and namespace["distance"].shape == (12, 12)
    assert "86,567,656" in printed
    assert (tmp_path / "mine.npz").exists() and (tmp_path / "mine" / "config.json").exists()


def test_every_command_shown_is_one():
    lines = [line for line in README.splitlines() if line.startswith("keras-vit ")]
    assert len(lines) >= 4
    for line in lines:
        assert callable(cli.build_parser().parse_args(shlex.split(line)[1:]).run)


def test_the_table_of_models_names_every_builder():
    table = README.partition("| Family | Builders |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(builders.__all__)


def test_the_table_of_exports_is_that_of_the_results():
    path = Path(__file__).parents[1] / "benchmarks" / "export.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_exports", path)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    table = benchmark.table(benchmark.RESULTS)
    assert all(f"| {title} |" in table for title, _ in benchmark.FORMATS.values())
    assert benchmark.with_table(README, table) == README, "python benchmarks/export.py --readme"
