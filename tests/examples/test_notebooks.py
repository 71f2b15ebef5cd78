"""Compares the stored notebooks with their sources. CI executes the notebooks separately."""

import re

import pytest

from tests.examples import scripts

pytest.importorskip("jupytext", reason="it reads the sources")
nbformat = pytest.importorskip("nbformat", reason="it reads the notebooks")
pytest.importorskip("nbclient", reason="it executes them")

NAMES = sorted(p.stem for p in (scripts.EXAMPLES / "notebooks").glob("*.py") if p.stem not in ("run", "samples"))
# Folders that exist on one machine only.
OWN_PATH = re.compile(r"(?<![\w.:/-])/(?:home|root|work|tmp|usr|opt|mnt|srv|var|Users|private)/[\w.-]+")


@pytest.fixture(scope="module")
def run():
    return scripts.load("notebooks/run.py")


def text_of(output):
    data = output.get("data", {})
    return output.get("text", "") + "".join(text for kind, text in data.items() if kind.startswith("text/"))


@pytest.mark.parametrize("name", NAMES)
def test_stored_notebook_is_its_executed_source(name, run):
    path = scripts.EXAMPLES / "notebooks" / f"{name}.ipynb"
    notebook, source = nbformat.read(path, as_version=4), run.read(path.with_suffix(".py"))
    nbformat.validate(notebook)
    stored, written = ([(cell.cell_type, cell.source) for cell in book.cells] for book in (notebook, source))
    assert stored == written, f"python examples/notebooks/run.py {name}"
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error"]
    assert path.stat().st_size < 600_000
    shown = "\n".join(map(text_of, outputs))
    assert "Warning: " not in shown
    assert not OWN_PATH.findall(shown + "\n".join(cell.source for cell in notebook.cells))
    # The first cells show a picture, and a reader without the repository learns how to run the notebook.
    first = [output for cell in notebook.cells[:3] for output in cell.get("outputs", ())]
    assert any({"image/jpeg", "image/png"} & set(output.get("data", ())) for output in first), "no picture"
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert not re.findall(r"QUICK|environ|%config", code) and "samples.py" in notebook.cells[0].source


def test_own_images_take_twenty_lines():
    cells = nbformat.read(scripts.EXAMPLES / "notebooks" / "own_images.ipynb", as_version=4).cells
    (code,) = [cell.source for cell in cells if "model.fit" in cell.source and cell.cell_type == "code"]
    assert len([line for line in code.splitlines() if line.strip()]) == 20 and "samples" not in code
