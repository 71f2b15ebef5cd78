"""What the records of all families of models have in common: fields, checks, copies, and JSON both ways."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

from keras_vit import activations, arguments
from keras_vit.preprocessing import Preprocessing, preprocessing_record

# The resolution of the position table of a model of any size, unless its weights have another.
DEFAULT_IMAGE_SIZE = 224

# (field, another that is derived again if the first one is changed and the other is not given).
_FOLLOWS = (
    ("hidden_dim", "head_dim"),
    ("num_heads", "head_dim"),
    ("image_size", "grid_size"),
    ("pooling", "class_token"),
)


def checked(check, *args, optional=False, **options):
    """A field of a record that holds `check(name, value, *args)`, or None if `optional`; options as of a dataclass."""

    def check_field(name, value):
        return None if optional and value is None else check(name, value, *args)

    return dataclasses.field(metadata={"check": check_field}, **options)


def activation_of(name, value):
    """The name of an activation of Keras or this package, or a user's own function."""
    try:
        return activations.name_of(activations.get(value))
    except (ValueError, TypeError):
        expected = 'an activation of Keras, as a name or a function, or "gelu_tanh"'
        raise arguments.invalid(name, expected, value) from None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ModelConfig:
    """The fields that the records of all families have.

    Args:
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels.
        in_channels: Int, the images' channels.
        num_classes: Int, the number of classes; 0 for features.
        classifier_activation: Activation of the head; "linear" or None for logits.
        preprocessing: The `Preprocessing` that the model was trained with, or a dict of its fields.
        class_names: Strings, the names of the classes, or None. Not compared: they do not change the outputs.
        multi_label: Bool, whether an image may have any number of classes, and not one of them. Not compared.
    """

    # The name of the family in JSON.
    family: ClassVar[str] = ""

    image_size: int | tuple[int, int] | tuple[None, None] = (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
    in_channels: int = checked(arguments.positive_int, default=3)
    num_classes: int = checked(arguments.non_negative_int, default=1000)
    classifier_activation: str | Callable | None = checked(activation_of, default="linear")  # noqa: RUF009
    preprocessing: Preprocessing = dataclasses.field(default_factory=Preprocessing)
    class_names: tuple[str, ...] | None = dataclasses.field(default=None, compare=False)
    multi_label: bool = checked(arguments.boolean, default=False, compare=False)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if "check" in field.metadata:
                self._set(field.name, field.metadata["check"](field.name, getattr(self, field.name)))
        self._set("image_size", arguments.image_size(self.image_size))
        self._set("preprocessing", preprocessing_record(self.preprocessing))
        # Any number of names, since a head may be added later.
        self._set("class_names", arguments.class_names(self.class_names, None))
        self.preprocessing.check_channels(self.in_channels)

    def _set(self, name, value):
        object.__setattr__(self, name, value)

    def replace(self, **changes):
        """Returns a copy with other values of some fields. Fields that are derived from these are derived again.

        Raises:
            ValueError: If there is no such field, or a value is out of its range.
        """
        check_names(type(self), changes)
        names = [field.name for field in dataclasses.fields(self)]
        derived = {name: None for source, name in _FOLLOWS if source in changes and name in names}
        return dataclasses.replace(self, **{**derived, **changes})

    def to_dict(self):
        """Returns the record as a dict that `json.dumps` takes."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["preprocessing"] = dataclasses.asdict(self.preprocessing)
        for name in ("activation", "classifier_activation"):
            if name in values:
                values[name] = activations.serialize(values[name])
        return {"family": self.family, **_lists(values)}

    @classmethod
    def from_dict(cls, values):
        """Makes the record that `to_dict` wrote.

        Args:
            values: A dict of fields; `family` may be left out if the class has one.

        Raises:
            ValueError: If it is no dict, is of another family, lacks a field or has one too many, or a value is out of
                its range.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"Expected a dict of the fields of {cls.__name__}. Received: {values!r}")
        values = dict(values)
        family = values.pop("family", cls.family)
        families = {kind.family: kind for kind in (cls, *cls.__subclasses__()) if kind.family}
        if family not in families:
            raise ValueError(f"Expected `family` as one of {', '.join(map(repr, families))}. Received: {family!r}")
        kind = families[family]
        check_names(kind, values)
        for field in dataclasses.fields(kind):
            if _has_no_default(field) and field.name not in values:
                received = ", ".join(values)
                raise ValueError(f"Expected the field `{field.name}` of a {kind.__name__}. Received: {received}")
        return kind(**values)

    def __repr__(self):
        # Fields with their default value are left out.
        shown = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            if value != default:
                shown.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


def check_names(kind, values):
    """Raises if `values` has a name that is no field of a kind of record."""
    names = [field.name for field in dataclasses.fields(kind)]
    if unknown := [name for name in values if name not in names]:
        raise ValueError(
            f"Expected fields of {kind.__name__}: {', '.join(names)}. Received: {', '.join(map(repr, unknown))}"
        )


def _has_no_default(field):
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _lists(value):
    """A value with lists for tuples, as JSON has it."""
    if isinstance(value, dict):
        return {key: _lists(each) for key, each in value.items()}
    return [_lists(each) for each in value] if isinstance(value, (tuple, list)) else value
