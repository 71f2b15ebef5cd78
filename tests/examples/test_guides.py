"""The Python and the commands in the guides of the site, run as they stand, and the names that they refer to."""

import doctest
import functools
import re
import shlex
from pathlib import Path

import pytest

import keras_vit
from keras_vit import cli, training

GUIDES = Path(__file__).resolve().parents[2] / "examples" / "site" / "docs" / "guides"
# The backend that tries each guide: together they take each about as long.
TRIED_ON = {
    "inspection": "torch",
}
NAMES = sorted(path.stem for path in GUIDES.glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
# `CHECK` ignores how a line is wrapped, and takes "..." for anything.
CHECK = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def text_of(name):
    return (GUIDES / f"{name}.md").read_text(encoding="utf-8")


def blocks(name):
    """The blocks of a guide, as (language, text, line number of the text)."""
    text = text_of(name)
    return [(block[1], block[2], text.count("\n", 0, block.start()) + 2) for block in BLOCK.finditer(text)]


def commands(name):
    """The arguments of each `keras-vit` in the blocks of shell of a guide."""
    for language, text, _ in blocks(name):
        for line in text.replace("\\\n", " ").splitlines() if language == "sh" else ():
            words = shlex.split(line, comments=True)
            for program in ("keras-vit", "keras_vit.cli"):
                if program in words:
                    yield words[words.index(program) + 1 :]


@pytest.fixture
def folder(shared, tmp_path, monkeypatch):
    """The folder in which a reader of the guides is: a checkpoint, a picture, and photos in a folder for each class."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ViT-B_16-224.npz").symlink_to(shared / "weights" / "ViT-B_16-224.npz")
    (tmp_path / "cats.png").symlink_to(shared / "data" / "coco_cats.png")
    for kind in ("daffodil", "sunflower", "tulip"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for file in sorted((shared / "data" / "flowers17" / kind).iterdir())[:6]:
            (tmp_path / "photos" / kind / file.name).symlink_to(file)
    return tmp_path


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.tried_on(b)) for n, b in TRIED_ON.items()])
def test_the_python_of_a_guide_runs_and_prints_what_it_says(name, folder, capsys):
    namespace, printed = {}, ""
    for language, text, line in blocks(name):
        if language == "python":
            capsys.readouterr()
            # The empty lines make errors name the guide's own.
            exec(compile("\n" * (line - 1) + text, f"{name}.md", "exec"), namespace)
            printed = capsys.readouterr().out
        elif language == "text":
            same = doctest.OutputChecker().check_output(text, printed, CHECK)
            assert same, f"{name}.md, line {line}: expected\n{text}\nreceived\n{printed}"
    check = CHECKS.get(name)
    if check is not None:
        check(namespace, folder)


def check_inspection(namespace, folder):
    drawn = {path.name for path in folder.glob("*.webp")}
    shown = {Path(path).name for path in re.findall(r"\((\.\./images/[^)]+)\)", text_of("inspection"))}
    assert drawn == shown
    assert all((GUIDES.parent / "images" / name).stat().st_size < 120_000 for name in shown)


CHECKS = {"inspection": check_inspection}


def test_each_guide_is_tried():
    assert sorted(TRIED_ON) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_a_guide_are_ones(name):
    for words in commands(name):
        args = cli.build_parser().parse_args(words)
        assert callable(args.run)
        if words[0] == "train":
            training.recipe(args.recipe).replace(dict(args.set))
        elif words[0] == "recipes" and args.name:
            training.recipe(args.name)


@pytest.mark.parametrize("name", NAMES)
def test_the_links_of_a_guide_lead_somewhere(name):
    text = text_of(name)
    referred = set(re.findall(r"\]\[(keras_vit[\w.]*)\]", text))
    assert referred
    for path in referred:
        functools.reduce(getattr, path.split(".")[1:], keras_vit)
    results = GUIDES.parents[3] / "benchmarks" / "results"
    for link in re.findall(r"\]\(([^):#]+)[^)]*\)", text):
        if "results/" in link:
            assert (results / Path(link).name).is_file(), link
        elif (link.endswith(".md") and "/" not in link) or "/images/" in link:
            assert (GUIDES / link).is_file(), link
