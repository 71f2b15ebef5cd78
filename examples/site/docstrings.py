"""A griffe extension that converts this package's docstrings to Markdown for the API pages."""

import dataclasses
import importlib
import inspect
import re

import griffe

import keras_vit
from keras_vit.models import builders

# The HTML that griffe writes for the section titles that it supports. `TITLES` matches all other titles.
TITLE = '<span class="doc-section-title">{}:</span>'
TITLES = re.compile(
    r"(?:^|(?<=\. ))(Example|Reference|Input and output shape|Input shape|Output shape|Attributes(?=: )):(?=\s|$)",
    re.MULTILINE,
)
# Matches several arguments in one line, such as "mean, std: ...". griffe would read the text after a space as a type,
# so the space is replaced by an en space.
SEVERAL = re.compile(r"^    \w+(?:, \w+)+:", re.MULTILINE)
EN_SPACE = "\u2002"
# Matches the `Preprocessing` in the docstring of a builder. Its many fields are left out in the API pages.
PREPROCESSING = re.compile(r"Preprocessing\((?:[^()]|\([^()]*\))*\)")
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
# Matches a name in backticks.
NAME = re.compile(r"(?<![`\[])`([A-Za-z_][\w.]*)(?:\([^`]*\))?`(?![`\]])")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def rewritten(text, room, own=()):
    """Returns a docstring as Markdown.

    `room` is the path of the public module that contains the documented object. `own` are the names of this object and
    of its arguments. These names do not become links.
    """
    text = text.replace("\nCall arguments:\n", "\nOther Parameters: Call arguments:\n")
    text = text.replace("\nExample:\n>>> ", "\nExample:\n\n>>> ")
    text = SEVERAL.sub(lambda found: "    " + found[0].strip().replace(", ", f",{EN_SPACE}"), text)
    text = TITLES.sub(lambda found: TITLE.format(found[1]), text)
    text = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    return "".join(part if part.startswith("```") else linked(part, room, own) for part in FENCE.split(text))


def linked(text, room, own):
    """Returns the text with links from public names in backticks to their entries in the API pages."""

    def link(found):
        path = public_path(found[1], room)
        return found[0] if path is None or found[1] in own else f"[{found[0]}][{path}]"

    return NAME.sub(link, text)


def public_path(name, room):
    """Returns the import path of the object that a docstring of the module `room` calls `name`, or None."""
    # A name that starts with "keras_vit." is the complete path. Other names may be relative to the module.
    places = ("keras_vit",) if name.startswith("keras_vit.") else (room, "keras_vit")
    name = name.removeprefix("keras_vit.")
    module, _, last = name.rpartition(".")
    if module:
        return f"keras_vit.{name}" if last in getattr(getattr(keras_vit, module, None), "__all__", ()) else None
    for place in places:
        if name in exported(place) and callable(exported(place)[name]):
            return f"{place}.{name}"
    return None


def exported(path):
    """Returns {name: object} for the names in a module's `__all__`, or an empty dict if it has no `__all__`."""
    module = keras_vit
    for part in path.split(".")[1:]:
        module = getattr(module, part, None)
    return {name: getattr(module, name) for name in getattr(module, "__all__", ())}


def own_names(obj):
    """Returns the names of an object and its arguments, and of its class and the arguments of the class."""
    names = set()
    for each in (obj, obj.parent):
        if each is not None and (each.is_function or each.is_class):
            names |= {each.name, *(parameter.name for parameter in each.parameters)}
    return names | {obj.name}


def show_defaults(obj):
    """Replaces the code of a dataclass's default values by the values that they have at run time."""
    for field in dataclasses.fields(getattr(importlib.import_module(obj.module.path), obj.name)):
        if field.name in obj.members and field.default_factory is dataclasses.MISSING:
            obj.members[field.name].value = None if field.default is dataclasses.MISSING else shown(field.default)


def shown(value):
    """Returns the Python code of a default value."""
    own = dataclasses.is_dataclass(value) and value == type(value)()
    return f"{type(value).__name__}()" if own else repr(value)


class Docstrings(griffe.Extension):
    """Converts all docstrings, and adds the docstrings and arguments that named builders get at run time."""

    def on_module_members(self, *, mod, **kwargs):
        """Gives griffe the names of the builders, which are computed at run time."""
        if mod.path == builders.__name__:
            mod.exports = list(builders.__all__)

    def on_package(self, *, pkg, **kwargs):
        """Converts all objects of a package after griffe has loaded it."""

        def walk(obj):
            if obj.is_alias:
                return
            if obj.path.startswith("keras_vit.models.builders.") and obj.name in builders.__all__:
                summary = getattr(builders, obj.name).__doc__.partition("\n\n")[0]
                obj.docstring = griffe.Docstring(PREPROCESSING.sub("Preprocessing(...)", summary), parent=obj)
            if obj.is_function and any("usual_arguments" in str(decorator.value) for decorator in obj.decorators):
                # The decorator gives these builders arguments at run time.
                names = inspect.signature(getattr(keras_vit, obj.name)).parameters
                shared = pkg["models.family.usual_arguments"].parameters
                obj.parameters = griffe.Parameters(*(each for each in shared if each.name in names))
            if obj.is_class and any("dataclass" in str(decorator.value) for decorator in obj.decorators):
                show_defaults(obj)
            if obj.docstring is not None:
                room = ".".join(obj.path.split(".")[:2])
                obj.docstring.value = rewritten(obj.docstring.value, room, own_names(obj))
            for member in obj.members.values():
                walk(member)

        walk(pkg)
