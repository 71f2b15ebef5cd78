"""What the records of all families of models have in common: fields, checks, copies, and JSON both ways."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

from keras_vit import activations, arguments
from keras_vit.preprocessing import Preprocessing

# The resolution that the stored grid of a model of any size is made for, unless its weights say otherwise.
DEFAULT_IMAGE_SIZE = 224

# (field, another whose None is settled by it).
_FOLLOWS = (
    ("hidden_dim", "head_dim"),
    ("num_heads", "head_dim"),
    ("image_size", "grid_size"),
    ("pooling", "class_token"),
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ModelConfig:
    """The fields that the records of all families have.

    Args:
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels.
        in_channels: Int, the images' channels.
        num_classes: Int, the number of classes; 0 for features.
        classifier_activation: Activation of the head; "linear" or None for logits.
        preprocessing: The `Preprocessing` that the model was trained with, or a dict of its fields.
        class_names: Strings, the names of the classes, or None. They decide no answer: records that differ in them
            alone are equal.
        multi_label: Bool, whether the model is for any number of classes an image, and not for one of them. Likewise.
    """

    # In JSON the records of all families say which they are.
    family: ClassVar[str] = ""

    image_size: int | tuple[int, int] | tuple[None, None] = (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE)
    in_channels: int = 3
    num_classes: int = 1000
    classifier_activation: str | Callable | None = "linear"
    preprocessing: Preprocessing = dataclasses.field(default_factory=Preprocessing)
    class_names: tuple[str, ...] | None = dataclasses.field(default=None, compare=False)
    multi_label: bool = dataclasses.field(default=False, compare=False)

    def __post_init__(self):
        self._set(
            image_size=arguments.image_size(self.image_size),
            in_channels=arguments.positive_int("in_channels", self.in_channels),
            num_classes=arguments.non_negative_int("num_classes", self.num_classes),
            classifier_activation=activation_of("classifier_activation", self.classifier_activation),
            preprocessing=preprocessing_record(self.preprocessing),
            # Of any number, for a head to come.
            class_names=arguments.class_names(self.class_names, None),
        )
        self.preprocessing.check_channels(self.in_channels)
        self._check_bools("multi_label")

    def replace(self, **changes):
        """Returns a copy with other values of some fields. What follows from these where it is not given follows anew.

        Raises:
            ValueError: If there is no such field, or a value cannot be.
        """
        check_names(type(self), changes)
        names = list(_defaults(type(self)))
        anew = {name: None for of, name in _FOLLOWS if of in changes and name in names}
        return dataclasses.replace(self, **{**anew, **changes})

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
            values: A dict of fields; `family` may be left out where the class says it.

        Raises:
            ValueError: If it is no dict, is of another family, lacks a field or has one too many, or a value cannot be.
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
        if missing := [name for name, default in _defaults(kind).items() if default is None and name not in values]:
            raise ValueError(f"Expected the field `{missing[0]}` of a {kind.__name__}. Received: {', '.join(values)}")
        return kind(**values)

    def __repr__(self):
        # Without the fields that are as they usually are.
        shown = [
            f"{name}={getattr(self, name)!r}"
            for name, default in _defaults(type(self)).items()
            if default != [getattr(self, name)]
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _set(self, **values):
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_bools(self, *names):
        for name in names:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"Invalid value received for argument `{name}`. Expected a bool. Received: {getattr(self, name)!r}"
                )


def _defaults(kind):
    """{field: [its default]}, None where it has none."""
    found = {}
    for field in dataclasses.fields(kind):
        if field.default_factory is not dataclasses.MISSING:
            found[field.name] = [field.default_factory()]
        else:
            found[field.name] = None if field.default is dataclasses.MISSING else [field.default]
    return found


def check_names(kind, values):
    """Raises if `values` names what is no field of a kind of record."""
    names = list(_defaults(kind))
    if unknown := [name for name in values if name not in names]:
        raise ValueError(
            f"Expected fields of {kind.__name__}: {', '.join(names)}. Received: {', '.join(map(repr, unknown))}"
        )


def preprocessing_record(value):
    """Returns a `Preprocessing`, or makes one of a dict of its fields."""
    if isinstance(value, Mapping):
        names = [field.name for field in dataclasses.fields(Preprocessing)]
        if unknown := [name for name in value if name not in names]:
            raise ValueError(
                f"Expected the fields {', '.join(names)} of `preprocessing`. Received: {', '.join(map(repr, unknown))}"
            )
        return Preprocessing(**value)
    if not isinstance(value, Preprocessing):
        raise ValueError(
            "Invalid value received for argument `preprocessing`. Expected a keras_vit.Preprocessing. "
            f"Received: {value!r}"
        )
    return value


def activation_of(name, value):
    """The name of an activation of Keras' or this package's, or a function of a user's own."""
    try:
        return activations.name_of(activations.get(value))
    except (ValueError, TypeError):
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected an activation of Keras, as a name or a function, "
            f'or "gelu_tanh". Received: {value!r}'
        ) from None


def _lists(value):
    if isinstance(value, dict):
        return {key: _lists(each) for key, each in value.items()}
    return [_lists(each) for each in value] if isinstance(value, (tuple, list)) else value
