"""The Python and the commands in the guides of the site, run as they stand, and the names that they refer to."""

import doctest
import functools
import inspect
import re
import shlex
from pathlib import Path

import keras
import pytest

import keras_vit
from keras_vit import cli, training

GUIDES = Path(__file__).resolve().parents[2] / "examples" / "site" / "docs" / "guides"
# The backend that tries each guide. Each has about as much to do.
TRIED_ON = {
    "coming_from": "tensorflow",
    "distribution": "jax",
    "evaluation": "tensorflow",
    "export_and_serving": "torch",
    "fine_tuning": "torch",
    "how_it_is_built": "jax",
    "inspection": "tensorflow",
    "pretraining_and_distillation": "jax",
    "recipes": "torch",
    "semi_supervised": "jax",
}
NAMES = sorted(path.stem for path in GUIDES.glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
# However lines are wrapped, and "..." for anything, also on a line of its own.
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def text_of(name):
    return (GUIDES / f"{name}.md").read_text(encoding="utf-8")


def blocks(name):
    """The blocks of code in a guide, as (language, text, number of its first line)."""
    text = text_of(name)
    return [(block[1], block[2], text.count("\n", 0, block.start()) + 2) for block in BLOCK.finditer(text)]


def commands(name):
    """The words after `keras-vit` in each line of shell in a guide."""
    for language, text, _ in blocks(name):
        for line in text.replace("\\\n", " ").splitlines() if language == "sh" else ():
            words = shlex.split(line, comments=True)
            for program in {"keras-vit", "keras_vit.cli"}.intersection(words):
                yield words[words.index(program) + 1 :]


def rows(name):
    """The cells of each row of the tables in a guide."""
    for line in text_of(name).splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture
def folder(shared, tmp_path, monkeypatch):
    """Where a reader of the guides is: beside a checkpoint, a picture, and photos in a folder for each class."""
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


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.backends(b)) for n, b in TRIED_ON.items()])
def test_the_python_of_a_guide_runs_and_prints_what_it_says(name, folder, capsys):
    namespace, printed = {}, ""
    for language, text, line in blocks(name):
        if language == "python":
            capsys.readouterr()
            # Errors name the lines of the guide.
            exec(compile("\n" * (line - 1) + text, f"{name}.md", "exec"), namespace)
            printed = capsys.readouterr().out
        elif language == "text":
            # Such a line may stand for nothing: a progress bar appears only once the work has taken five seconds.
            expected = re.sub(r"^\.\.\.\n", "...", text, flags=re.MULTILINE)
            same = doctest.OutputChecker().check_output(expected, printed, SAME)
            assert same, f"{name}.md, line {line}: expected\n{text}\nreceived\n{printed}"
    if name == "inspection":
        # The figures shown are those of the code.
        shown = {Path(path).name for path in re.findall(r"\((\.\./images/[^)]+)\)", text_of(name))}
        assert shown == {path.name for path in folder.glob("*.webp")}


def test_each_guide_is_tried_and_shows_small_figures():
    assert sorted(TRIED_ON) == NAMES
    assert all(path.stat().st_size < 120_000 for path in (GUIDES.parent / "images").iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_a_guide_are_ones(name):
    for words in commands(name):
        args = cli.build_parser().parse_args(words)
        assert callable(args.run)
        if words[0] == "train":
            training.recipe(args.recipe).replace(dict(args.set))
        elif words[0] == "recipes" and args.name:
            training.recipe(args.name)
    for script in re.findall(r"(?:python|sh|sbatch) ((?:examples|benchmarks)/[\w/]+\.(?:py|sh))", text_of(name)):
        assert (GUIDES.parents[3] / script).is_file(), script


@pytest.mark.parametrize("name", NAMES)
def test_the_links_of_a_guide_lead_somewhere(name):
    text = text_of(name)
    for path in set(re.findall(r"\]\[(keras_vit[\w.]*)\]", text)):
        functools.reduce(getattr, path.split(".")[1:], keras_vit)
    for link in re.findall(r"\]\(([^):#]+)[^)]*\)", text):
        if link.startswith("../results/"):
            assert (GUIDES.parents[3] / "benchmarks" / link.removeprefix("../")).is_file(), link
        elif link.startswith("../images/") or "/" not in link:
            assert (GUIDES / link).is_file(), link


def test_the_guide_to_recipes_lists_them_all():
    listed = [found[1] for cells in rows("recipes") if (found := re.fullmatch("`(\\w+)`", cells[0]))]
    assert [name for name in listed if name in training.RECIPES] == list(training.RECIPES)


def test_the_names_that_other_libraries_have_here_exist():
    known = {*dir(keras_vit), *inspect.signature(keras_vit.ViT).parameters}
    # Without references to the pages of the API.
    cells = [re.sub(r"\]\[[^]]*\]", "", ours).replace("[`", "") for *_, ours in rows("coming_from")]
    named = [name for cell in cells for name in re.findall(r"(?<!\w)`(\w+)(?:=[^`]*)?`", cell)]
    assert len(named) > 80
    assert set(named) - {"None", "load", "policy", "save", "use_ema"} <= known


def test_the_guide_to_the_code_names_each_floor():
    floors = {name for cells in rows("how_it_is_built") for name in re.findall(r"`(\w+)`", cells[0])}
    contract = (GUIDES.parents[3] / "pyproject.toml").read_text().partition("layers = [")[2].partition("]\n")[0]
    assert set(re.findall(r"keras_vit\.(\w+)", contract)) <= floors
