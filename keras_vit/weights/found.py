"""Collects the config fields that can be read from a checkpoint, each with the origin of its value."""

from typing import Any, NamedTuple

from keras_vit.config import Preprocessing

# The origins of values. The name of a library follows DEFAULT, as in "default of timm". The name of a model follows
# KNOWN, as in "known for vit_small_patch16_224".
STATED, DEFAULT, KNOWN = "stated in the file", "default of", "known for"


class Value(NamedTuple):
    """The value of a field and its origin. `certain` is False if a model with another value can have an equal file."""

    value: Any
    origin: str
    certain: bool = True


class Positions(NamedTuple):
    """The layout of a table of position embeddings.

    The first `num_prefix` positions are for the class token and similar tokens. The positions of the patches follow.
    `grid` is the (rows, columns) of the patches, or None if it is unknown. `is_stated` is True if the caller or the
    file gives the grid.
    """

    num_prefix: int = 0
    grid: tuple[int, int] | None = None
    is_stated: bool = False


class Found:
    """The config fields of a checkpoint. Each field has a value with its origin, or a reason why it is unknown.

    >>> found = Found("model.pth")
    >>> found.put(STATED, num_layers=12)
    >>> found.leave("such files do not contain it", "num_heads")
    >>> found.resolve({"num_heads": 3, "name": "vit"})
    {'num_layers': 12, 'num_heads': 3, 'name': 'vit'}
    """

    def __init__(self, path):
        self.path = path
        self.values: dict[str, Value] = {}
        self.unknown: dict[str, str] = {}
        # The method by which the file's code base resizes position embeddings, and the layout of the file's table.
        self.position_interpolation = "linear"
        self.positions = Positions()
        # {weight path of a table of relative position biases: its grid, (rows, columns)}.
        self.tables = {}
        # The names of the preprocessing fields that the file contains; None if it contains all.
        self.stated_constants = None

    def put(self, origin, *, certain=True, **fields):
        """Sets fields to values of one origin. Pass `certain=False` if other values can give the same file."""
        for name, value in fields.items():
            self.unknown.pop(name, None)
            self.values[name] = Value(value, origin, certain)

    def leave(self, reason, *names):
        """Marks the fields `names` as unknown. The error of `resolve` gives the reason."""
        for name in names:
            self.values.pop(name, None)
            self.unknown[name] = reason

    def doubt(self, reasons):
        """Marks the fields in {field: reason} as unknown, except `num_heads` if it already has a value."""
        for name, reason in reasons.items():
            if name != "num_heads" or name not in self.values:
                self.leave(reason, name)

    def attempt(self, origin, name, read):
        """Sets a field to the result of `read()`. If `read` raises a ValueError, marks the field as unknown."""
        try:
            self.put(origin, **{name: read()})
        except ValueError as error:
            self.leave(str(error), name)

    def forget(self, *names):
        for name in names:
            self.values.pop(name, None)
            self.unknown.pop(name, None)

    def get(self, name, default=None):
        """Returns the value of a field, or `default` if it is not known."""
        return self.values[name].value if name in self.values else default

    def certain(self, name):
        """Returns True if the value of a field is known, and no other value is possible."""
        return name in self.values and self.values[name].certain

    def is_stated(self, name):
        """Returns True if the file contains the value of a field, so that no default was needed."""
        return name in self.values and self.values[name].origin == STATED

    def resolve(self, given):
        """Returns {field: value}. The user's values `given` override the file's. Raises if a field has no value."""
        order = sorted(self.unknown, key=lambda name: ("preprocessing", "num_heads", name).index(name))
        unknown = {name: self.unknown[name] for name in order if name not in given}
        if unknown:
            listed = "".join(f"\n  {name}: {reason}" for name, reason in unknown.items())
            raise ValueError(
                f"{self.path!r} does not contain {len(unknown)} of the settings that change the model's outputs. "
                f"Pass {', '.join(f'{name}=' for name in unknown)} to from_pretrained, or use --set for each setting "
                f"on the command line. The reasons:{listed}"
            )
        return {**{name: value.value for name, value in self.values.items()}, **given}

    def differences(self, fields, names):
        """Yields (field, the file's value, the model's value) for the fields in `names` that certainly differ."""
        for name in names:
            if self.certain(name) and name in fields and fields[name] != self.get(name):
                yield name, self.get(name), fields[name]


def attempt_preprocessing(found, default, config, fields, read):
    """Sets the preprocessing in `found` to the values that `read()` returns, or marks it as unknown if `read` fails.

    `fields` maps a key of `config` to the preprocessing fields that this key sets. If `config` has none of these keys,
    all values are defaults, and their origin is `default`.
    """

    def preprocessing():
        constants = read()
        try:
            return Preprocessing(**constants)
        except ValueError as error:
            raise ValueError(f"Cannot load {found.path!r}: its preprocessing is invalid. {error}") from None

    found.stated_constants = {field for key in fields if config.get(key) is not None for field in fields[key]}
    found.attempt(STATED if found.stated_constants else default, "preprocessing", preprocessing)


def put_preprocessing(found, source, constants):
    """Sets the preprocessing in `found` to `constants`, the values of all models of this source.

    If `constants` is None, the models of the source differ, and the preprocessing is marked as unknown.
    """
    if constants is None:
        found.leave(f"{source.name} models differ in it", "preprocessing")
    else:
        found.put(f"{DEFAULT} {source.name}", preprocessing=Preprocessing(**constants))


def put_settings(found, source, *names, reason=None):
    """Sets the fields `names` in `found` to the values of the `Source`.

    If a value is None, marks the field as unknown. The error contains `reason`, or a default text if `reason` is None.
    """
    for name in names:
        if getattr(source, name) is None:
            found.leave(reason or f"{source.name} files do not contain it", name)
        else:
            found.put(f"{DEFAULT} {source.name}", **{name: getattr(source, name)})
