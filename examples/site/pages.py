"""A hook for MkDocs that adds the API pages, the notebooks, and the benchmarks' tables and pictures to the site."""

import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType

import model_tables
import notebooks
import readme
import result_tables
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

import keras_vit
from keras_vit.models import builders

ROOT = Path(__file__).resolve().parents[2]
TABLES = {**model_tables.TABLES, **result_tables.TABLES, **readme.TABLES}
# Matches a line such as "<!-- family: ViT -->", which is replaced by a table.
MARKER = re.compile(r"^( *)<!-- (\w+)(?:: (.+?))? -->$", re.MULTILINE)
MODULES = [name for name in keras_vit.__all__ if isinstance(getattr(keras_vit, name), ModuleType)]
# The first entries on a page of the API. All other entries follow in alphabetical order.
FIRST = ("from_pretrained", "ViT")
EDIT = "edit/main/examples/site/docs/"


def on_config(config):
    """Adds the API pages and notebooks to the navigation. If `repo_url` is set, adds edit links to the pages."""
    pages = [{"keras_vit": "api/keras_vit.md"}, {"Named builders": "api/builders.md"}]
    pages += [{module: f"api/{module}.md"} for module in MODULES]
    next(entry for entry in config.nav if "API" in entry)["API"] = pages
    found = [{title: f"notebooks/{name}.md"} for name, title in notebooks.titles().items()]
    next(entry for entry in config.nav if "Notebooks" in entry)["Notebooks"] = found
    if config.repo_url:
        config.edit_uri = EDIT


def on_files(files, config):
    """Adds the API pages, the notebooks, and the pictures of benchmarks/results and examples."""
    for path, content in api_pages().items():
        files.append(File.generated(config, path, content=content))
    for name in notebooks.titles():
        content, pictures = notebooks.page(name, config.repo_url)
        files.append(File.generated(config, f"notebooks/{name}.md", content=content))
        for path, data in pictures.items():
            files.append(File.generated(config, f"notebooks/{path}", content=data))
    for folder, target in (("benchmarks/results", "results"), ("examples/images", "images")):
        for picture in sorted((ROOT / folder).glob("*.png")):
            files.append(File.generated(config, f"{target}/{picture.name}", abs_src_path=str(picture)))


def on_page_markdown(markdown, page, **kwargs):
    """Replaces the markers in a page by tables."""

    def table(found):
        indent, name, argument = found.groups()
        if name not in TABLES:
            raise PluginError(f"Expected in {page.file.src_uri} one of {', '.join(TABLES)}. Received: {found[0]}")
        return textwrap.indent(TABLES[name](*filter(None, (argument or "").split(", "))), indent)

    return MARKER.sub(table, markdown)


def api_pages():
    """Returns {path: Markdown} of the API pages.

    Each public object is on one page. If another module also has the object, the page of that module has a link to it.
    """
    homes = {id(getattr(builders, name)): f"keras_vit.{name}" for name in builders.__all__}
    pages = {"api/keras_vit.md": module_page("keras_vit", keras_vit, homes), "api/builders.md": builders_page()}
    for name in MODULES:
        pages[f"api/{name}.md"] = module_page(f"keras_vit.{name}", getattr(keras_vit, name), homes)
    return pages


def module_page(path, module, homes):
    """Returns the API page of a module, and adds its objects to `homes`.

    `homes` is {id of an object: path of the object's entry on an API page}. It contains the objects of the pages that
    were made before.
    """
    entries, elsewhere = [], []
    for name in sorted(module.__all__, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        found = getattr(module, name)
        if isinstance(found, ModuleType):
            continue
        home = homes.setdefault(id(found), f"{path}.{name}")
        if home == f"{path}.{name}" and name not in builders.__all__:
            entries.append(f"::: {home}\n")
        elif name not in builders.__all__:
            elsewhere.append(f"[`{name}`][{home}]")
    parts = [f"# {path}\n", f"{inspect.cleandoc(module.__doc__ or '')}\n"]
    if set(builders.__all__) <= set(module.__all__):
        parts.append("The builders of single sizes, such as `ViTB16`, are on [their own page](builders.md).\n")
    if elsewhere:
        parts.append(f"This module also contains these objects of `keras_vit`: {', '.join(elsewhere)}.\n")
    return "\n".join([*parts, *entries])


def builders_page():
    """Returns the page with a table of the builders of single sizes, such as `ViTB16`."""
    return "\n".join(
        [
            "# Named builders\n",
            "Each builder makes one size of a family: `keras_vit.ViTB16(num_classes=10)` is "
            '`keras_vit.ViT("B/16", num_classes=10)`. The builder of the family explains the arguments: '
            f"{', '.join(f'[`{name}`][keras_vit.{name}]' for name in model_tables.FAMILY_BUILDERS)}.\n",
            model_tables.all_builders(),
        ]
    )
