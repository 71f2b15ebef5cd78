"""The base of all model configs: fields, checks, copies and JSON conversion."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

from keras_vit import activations, arguments
from keras_vit.preprocessing import Preprocessing, preprocessing_record

# Sets the position table of a model of any size, unless its weights have another.
DEFAULT_IMAGE_SIZE = 224
# More classes than any model has.
MOST_CLASSES = 2**20

# Of convolutions with strides: TensorFlow's, and the same number of zeros on all sides, as in PyTorch.
PADDINGS = ("same", "symmetric")

# (field, dependent field that `replace` derives again unless it is passed too).
_FOLLOWS = (
    ("hidden_dim", "head_dim"),
    ("num_heads", "head_dim"),
    ("image_size", "grid_size"),
    ("pooling", "class_token"),
)


def checked(check, *args, optional=False, **options):
    """Returns a dataclass field that is validated by `check(name, value, *args)`, or may be None if `optional`."""

    def check_field(name, value):
        return None if optional and value is None else check(name, value, *args)

    return dataclasses.field(metadata={"check": check_field}, **options)


def activation_of(name, value):
    """Returns an activation's name, or a user's own function unchanged."""
    try:
        return activations.name_of(activations.get(value))
    except (ValueError, TypeError):
        expected = 'an activation of Keras, as a name or a function, or "gelu_tanh"'
        raise arguments.invalid(name, expected, value) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The fields, checks, copies and JSON conversion shared by the configs of all families."""

    # The model family's name in JSON.
    family: ClassVar[str] = ""

    image_size: int | tuple[int, int] | tuple[None, None] = (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
    in_channels: int = checked(arguments.positive_int, arguments.LARGEST, default=3)
    num_classes: int = checked(arguments.non_negative_int, MOST_CLASSES, default=1000)
    classifier_activation: str | Callable | None = checked(activation_of, default="linear")  # noqa: RUF009
    preprocessing: Preprocessing = dataclasses.field(default_factory=Preprocessing)
    # Not compared, since none changes the outputs. `multi_label`: an image may have any number of classes.
    # `regression`: the outputs are numbers instead of classes.
    class_names: tuple[str, ...] | None = dataclasses.field(default=None, compare=False)
    multi_label: bool = checked(arguments.boolean, default=False, compare=False)
    regression: bool = checked(arguments.boolean, default=False, compare=False)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if "check" in field.metadata:
                self._set(field.name, field.metadata["check"](field.name, getattr(self, field.name)))
        self._set("image_size", arguments.image_size(self.image_size))
        self._set("preprocessing", preprocessing_record(self.preprocessing))
        # Any number of names: a head may be added later.
        self._set("class_names", arguments.class_names(self.class_names, None))
        self.preprocessing.check_channels(self.in_channels)
        if self.multi_label and self.regression:
            raise ValueError("Expected one of `multi_label` and `regression`. Received: both")

    def _set(self, name, value):
        object.__setattr__(self, name, value)

    def replace(self, **changes):
        """Returns a copy with changed fields, deriving dependent ones again; raises ValueError if one is invalid."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        derived = {name: None for source, name in _FOLLOWS if source in changes and name in values}
        return arguments.record(type(self), {**values, **derived, **changes})

    def to_dict(self):
        """Returns the config as a dict that `json.dumps` accepts."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["preprocessing"] = dataclasses.asdict(self.preprocessing)
        for name in ("activation", "classifier_activation"):
            if name in values:
                values[name] = activations.serialize(values[name])
        return {"family": self.family, **_lists(values)}

    @classmethod
    def from_dict(cls, values):
        """Returns the config from a dict by `to_dict`; raises ValueError for unknown, missing or invalid fields."""
        if not isinstance(values, Mapping):
            raise ValueError(f"Expected a dict of the fields of {cls.__name__}. Received: {values!r}")
        values = dict(values)
        family = values.pop("family", cls.family)
        families = {kind.family: kind for kind in (cls, *cls.__subclasses__()) if kind.family}
        if family not in families:
            raise ValueError(f"Expected `family` as one of {', '.join(map(repr, families))}. Received: {family!r}")
        return arguments.record(families[family], values)


def _lists(value):
    """Returns a value with tuples converted to lists, as in JSON."""
    if isinstance(value, dict):
        return {key: _lists(each) for key, each in value.items()}
    return [_lists(each) for each in value] if isinstance(value, (tuple, list)) else value
