"""Runs the Python of the site's guides, and checks their commands, links and names."""

import doctest
import functools
import inspect
import json
import re
import shlex
from pathlib import Path

import keras
import pytest

import keras_vit
from keras_vit import cli, training

GUIDES = Path(__file__).resolve().parents[2] / "examples" / "site" / "docs" / "guides"
NAMES = sorted(path.stem for path in GUIDES.glob("*.md"))
# Only JAX distributes variables. The long guides take 10 to 30 seconds each.
MARKS = {"distribution": pytest.mark.backends("jax")}
_LONG = ("coming_from", "evaluation", "export_and_serving", "fine_tuning", "inspection", "recipes", "kaggle")
MARKS |= dict.fromkeys((*_LONG, "explaining_predictions", "labels_and_outputs"), pytest.mark.long)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
# Lines may be wrapped elsewhere, and "..." stands for any text.
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def text_of(name):
    return (GUIDES / f"{name}.md").read_text(encoding="utf-8")


def blocks(name):
    """Returns the code blocks of a guide, as (language, text, number of the first line)."""
    text = text_of(name)
    return [(block[1], block[2], text.count("\n", 0, block.start()) + 2) for block in BLOCK.finditer(text)]


def commands(name):
    """Yields the words after `keras-vit` in each shell line of a guide."""
    for language, text, _ in blocks(name):
        for line in text.replace("\\\n", " ").splitlines() if language == "sh" else ():
            words = shlex.split(line, comments=True)
            for program in {"keras-vit", "keras_vit.cli"}.intersection(words):
                yield words[words.index(program) + 1 :]


def rows(name):
    """Yields the cells of each table row of a guide."""
    for line in text_of(name).splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture
def folder(shared, tmp_path, monkeypatch):
    """A folder with a checkpoint, a picture, and photos in a folder for each class."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ViT-B_16-224.npz").symlink_to(shared / "weights" / "ViT-B_16-224.npz")
    (tmp_path / "cats.png").symlink_to(shared / "data" / "coco_cats.png")
    for kind in ("daffodil", "sunflower", "tulip"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for file in sorted((shared / "data" / "flowers17" / kind).iterdir())[:6]:
            (tmp_path / "photos" / kind / file.name).symlink_to(file)
    yield tmp_path
    if keras.backend.backend() == "jax":
        keras.distribution.set_distribution(None)


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in NAMES])
def test_python_of_guide_prints_the_text_below_it(name, folder, capsys):
    namespace, printed = {}, ""
    for language, text, line in blocks(name):
        if language == "python":
            capsys.readouterr()
            # Errors name the lines of the guide.
            exec(compile("\n" * (line - 1) + text, f"{name}.md", "exec"), namespace)
            printed = capsys.readouterr().out
        elif language == "text":
            # A progress bar appears only after five seconds of work, so a line "..." may stand for no text.
            expected = re.sub(r"^\.\.\.\n", "...", text, flags=re.MULTILINE)
            same = doctest.OutputChecker().check_output(expected, printed, SAME)
            assert same, f"{name}.md, line {line}: expected\n{text}\nreceived\n{printed}"
    if name == "inspection":
        # The guide shows every figure that its code draws, and no other.
        shown = {Path(path).name for path in re.findall(r"\((\.\./images/[^)]+)\)", text_of(name))}
        assert shown == {path.name for path in folder.glob("*.webp")}


@pytest.mark.parametrize("name", NAMES)
def test_commands_of_guide_can_be_parsed(name):
    for words in commands(name):
        args = cli.build_parser().parse_args(words)
        assert callable(args.run)
        if words[0] == "train":
            training.RECIPES[args.recipe].replace(dict(args.set))
        elif words[0] == "recipes" and args.name:
            training.RECIPES[args.name]
    for script in re.findall(r"(?:python|sh|sbatch) ((?:examples|benchmarks)/[\w/]+\.(?:py|sh))", text_of(name)):
        assert (GUIDES.parents[3] / script).is_file(), script


@pytest.mark.parametrize("name", NAMES)
def test_links_of_guide_have_targets(name):
    text = text_of(name)
    for path in set(re.findall(r"\]\[(keras_vit[\w.]*)\]", text)):
        functools.reduce(getattr, path.split(".")[1:], keras_vit)
    for link in re.findall(r"\]\(([^):#]+)[^)]*\)", text):
        if link.startswith("../results/"):
            assert (GUIDES.parents[3] / "benchmarks" / link.removeprefix("../")).is_file(), link
        elif link.startswith("../images/") or "/" not in link:
            assert (GUIDES / link).is_file(), link


def test_guide_to_recipes_lists_every_recipe():
    listed = [found[1] for cells in rows("recipes") if (found := re.fullmatch("`(\\w+)`", cells[0]))]
    assert [name for name in listed if name in training.RECIPES] == list(training.RECIPES)


def test_guide_coming_from_names_existing_arguments():
    fields = keras_vit.ViTConfig.__dataclass_fields__
    known = {*dir(keras_vit), *inspect.signature(keras_vit.ViT).parameters, *fields}
    # References to the API pages are removed first.
    cells = [re.sub(r"\]\[[^]]*\]", "", ours).replace("[`", "") for *_, ours in rows("coming_from")]
    named = [name for cell in cells for name in re.findall(r"(?<!\w)`(\w+)(?:=[^`]*)?`", cell)]
    assert len(named) > 80
    assert set(named) - {"load", "augment", "save", "use_ema"} <= known


def test_guide_to_the_code_names_each_layer_of_imports():
    floors = {name for cells in rows("how_it_is_built") for name in re.findall(r"`(\w+)`", cells[0])}
    contract = (GUIDES.parents[3] / "pyproject.toml").read_text().partition("layers = [")[2].partition("]\n")[0]
    assert set(re.findall(r"keras_vit\.(\w+)", contract)) <= floors


def test_diffs_of_guide_to_the_code_fit_its_files():
    root, checked = GUIDES.parents[3], 0
    for language, text, _ in blocks("how_it_is_built"):
        for path, lines in (
            re.findall(r"^--- (\S+)\n((?:(?!--- ).*\n)+)", text, re.MULTILINE) if language == "diff" else ()
        ):
            kept = [line[1:] for line in lines.splitlines() if line.startswith(" ")]
            content = (root / path).read_text(encoding="utf-8").splitlines() if kept else []
            assert [line for line in kept if line not in content] == [], path
            checked += len(kept)
    assert checked >= 8


def result(name):
    return json.loads((GUIDES.parents[3] / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def test_accuracies_of_guides_equal_the_results():
    for name, recipe in (("LoRA of rank 8", "lora_flowers17"), ("all weights", "finetune_flowers17")):
        found = result(f"train_{recipe}")
        row = [f"{name}, `{recipe}`", f"{found['test']['accuracy']:.4f}", f"{found['seconds'] / 60:.0f} minutes"]
        assert row in list(rows("fine_tuning"))
        assert f"Version {'.'.join(found['keras_vit'].split('.')[:2])} reached" in text_of("fine_tuning")
    summary, shown = result("pretraining_labels")["summary"], list(rows("pretraining_and_distillation"))
    methods = {
        **{"from scratch": "scratch", "masked patch prediction, 16 epochs": "masked_patch"},
        **{"SimMIM, 20 epochs": "simmim", "MAE, 12 epochs": "mae"},
    }
    for title, method in methods.items():
        mean, deviation = summary[method]["mean"], summary[method]["standard_deviation"]
        assert [title, f"{mean:.4f} ± {deviation:.4f}"] in shown
    assert f"reached {summary['scratch_long']['mean']:.4f}" in text_of("pretraining_and_distillation")
