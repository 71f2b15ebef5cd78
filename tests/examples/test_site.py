"""The tables, pages and commands of the documentation site."""

import importlib
import pkgutil
import re
import sys

import pytest

from keras_vit.models import builders
from tests.examples import scripts

FOLDER = scripts.EXAMPLES / "site"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((FOLDER / "docs").glob("*.md"))}
# Words that a user of another package searches for.
SEARCHED = (
    *("include_top", "input_shape", 'weights="imagenet"', "grad-cam", "confusion matrix", "mixed precision", "EXIF"),
    *("TensorFloat32", "TF Serving", "submission.csv"),
)


@pytest.fixture(scope="module")
def site():
    """Returns a function that imports a file of examples/site."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))


def markers(text):
    return re.findall(r"^ *<!-- (\w+)(?:: (.+?))? -->$", text, re.MULTILINE)


def test_each_builder_is_in_one_family_table(site):
    tables = site("model_tables")
    assert [argument for name, argument in markers(PAGES["models.md"]) if name == "family"] == list(tables.FAMILIES)
    named = [name for family in tables.FAMILIES for name in tables.names_of(family)]
    assert sorted(named) == sorted(builders.__all__)


def test_markers_of_pages_and_tables_agree(site):
    tables = {**site("model_tables").TABLES, **site("result_tables").TABLES, **site("readme").TABLES}
    shown = {name for text in PAGES.values() for name, _ in markers(text)}
    assert shown == set(tables)


def resolves(path):
    """Returns whether a dotted path is a module or a name that can be imported."""
    try:
        pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        return False
    return True


def test_changelog_lists_removed_names_and_existing_ones():
    rows = [line.split("|")[1:3] for line in PAGES["changelog.md"].splitlines() if line.startswith("| `")]
    old, new = (re.findall(r"keras_vit\.[\w.]*\w", " ".join(column)) for column in zip(*rows, strict=True))
    assert len(old) > 30 and len(new) > 30
    assert [path for path in old if resolves(path)] == []
    assert [path for path in new if not resolves(path)] == []


def test_result_tables_have_no_empty_cells(site):
    tables = {**site("result_tables").TABLES, "checkpoints": site("model_tables").checkpoints}
    # The excluded tables build models or take an argument.
    calls = [(name, ()) for name in set(tables) - {"parameters", "pipeline", "speeds", "study"}]
    shown = [*markers(PAGES["studies.md"]), *markers(PAGES["speed.md"])]
    calls += [(name, arguments.split(", ")) for name, arguments in shown if arguments]
    for name, arguments in calls:
        lines = [line for line in tables[name](*arguments).splitlines() if line.startswith("|")]
        assert len(lines) >= 3, (name, arguments)
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1, (name, arguments)
        assert "None" not in "".join(lines), (name, arguments)


@pytest.mark.parametrize("words", SEARCHED)
def test_a_page_contains_the_searched_words(words):
    guides = {path.name: path.read_text(encoding="utf-8") for path in (FOLDER / "docs" / "guides").glob("*.md")}
    assert [name for name, text in {**PAGES, **guides}.items() if words.lower() in text.lower()]


def test_notebook_pages_show_code_outputs_and_links(site):
    notebooks = site("notebooks")
    assert set(notebooks.titles()) == {path.stem for path in (scripts.EXAMPLES / "notebooks").glob("*.ipynb")}
    for name, title in notebooks.titles().items():
        text, pictures = notebooks.page(name)
        assert f"# {title}\n" in text and "```python" in text and "```text" in text and pictures
        assert text.count("![Output](") == len(pictures) and "Open in" not in text
    text, _ = notebooks.page("own_images", "https://github.com/owner/name")
    assert "https://colab.research.google.com/github/owner/name/blob/main/examples/notebooks/own_images.ipynb" in text
    assert "https://kaggle.com/kernels/welcome?src=https://github.com/owner/name/blob/main/" in text
