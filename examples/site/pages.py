"""MkDocs' hook: the API pages from each room's `__all__`, the tables, and the pictures of the benchmarks."""

import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType

import model_tables
import result_tables
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

import keras_vit
from keras_vit.models import builders

ROOT = Path(__file__).resolve().parents[2]
TABLES = {**model_tables.TABLES, **result_tables.TABLES}
# A line such as "<!-- family: ViT -->" in a page stands for a table.
MARKER = re.compile(r"^( *)<!-- (\w+)(?:: (.+?))? -->$", re.MULTILINE)
ROOMS = [name for name in keras_vit.__all__ if isinstance(getattr(keras_vit, name), ModuleType)]


def on_config(config):
    """Puts the API pages into the navigation."""
    pages = [{"keras_vit": "api/keras_vit.md"}, {"Named builders": "api/builders.md"}]
    pages += [{room: f"api/{room}.md"} for room in ROOMS]
    next(entry for entry in config.nav if "API" in entry)["API"] = pages


def on_files(files, config):
    """Adds the API pages, and the pictures of benchmarks/results and examples."""
    for path, content in api_pages().items():
        files.append(File.generated(config, path, content=content))
    for folder, place in (("benchmarks/results", "results"), ("examples/images", "images")):
        for picture in sorted((ROOT / folder).glob("*.png")):
            files.append(File.generated(config, f"{place}/{picture.name}", abs_src_path=str(picture)))


def on_page_markdown(markdown, page, **kwargs):
    """Replaces the markers of tables by the tables."""

    def table(found):
        indent, name, argument = found.groups()
        if name not in TABLES:
            raise PluginError(f"Expected in {page.file.src_uri} one of {', '.join(TABLES)}. Received: {found[0]}")
        return textwrap.indent(TABLES[name](*filter(None, (argument or "").split(", "))), indent)

    return MARKER.sub(table, markdown)


def api_pages():
    """Returns {path: Markdown} of the API: each public object once, and links where other rooms have it too."""
    homes = {id(getattr(builders, name)): f"keras_vit.{name}" for name in builders.__all__}
    pages = {"api/keras_vit.md": room_page("keras_vit", keras_vit, homes), "api/builders.md": builders_page()}
    for name in ROOMS:
        pages[f"api/{name}.md"] = room_page(f"keras_vit.{name}", getattr(keras_vit, name), homes)
    return pages


def room_page(path, room, homes):
    """Returns the page of a room; `homes` has the path of each object that a page has, by its identity."""
    entries, elsewhere = [], []
    for name in room.__all__:
        found = getattr(room, name)
        if isinstance(found, ModuleType):
            continue
        home = homes.setdefault(id(found), f"{path}.{name}")
        if home == f"{path}.{name}" and name not in builders.__all__:
            entries.append(f"::: {home}\n")
        elif name not in builders.__all__:
            elsewhere.append(f"[`{name}`][{home}]")
    parts = [f"# {path}\n", f"{inspect.cleandoc(room.__doc__ or '')}\n"]
    if set(builders.__all__) <= set(room.__all__):
        parts.append("The builders of single sizes, such as `ViTB16`, are on [their own page](builders.md).\n")
    if elsewhere:
        parts.append(f"Also here, and the same as in `keras_vit`: {', '.join(elsewhere)}.\n")
    return "\n".join([*parts, *entries])


def builders_page():
    """Returns the page of the builders of single sizes, by family."""
    parts = [
        "# Named builders\n",
        "Each builds one size of a family: the family's builder with the variant and other defaults set. All take its "
        "other arguments as keywords. [Models](../models.md) has their sizes and checkpoints.\n",
    ]
    for family in model_tables.FAMILIES:
        parts.append(f"## {family}\n")
        for name in model_tables.names_of(family):
            options = "    options:\n      heading_level: 3\n      separate_signature: false\n"
            parts.append(f"::: keras_vit.{name}\n{options}")
    return "\n".join(parts)
