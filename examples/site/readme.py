"""Copies sections of README.md to the site's front page."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
# {start of a link in README: start of the same link on the site}.
LINKS = {
    "examples/site/docs/": "",
    "examples/images/": "images/",
    "examples/notebooks)": "notebooks/own_images.md)",
    "(#speed)": "(speed.md)",
}


def readme(title=None):
    """Returns the README section with this title, without the heading. None means the text below the main title."""
    title = "keras_vit" if title is None else title
    text = README.read_text(encoding="utf-8")
    section = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
    for link, target in LINKS.items():
        section = section.replace(link, target)
    return section.strip()


TABLES = {"readme": readme}
