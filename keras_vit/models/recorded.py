"""What the builders of all families share."""

import dataclasses
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import keras

from keras_vit.record import config_of
from keras_vit.weights.preprocessing import preprocessing_of

P = ParamSpec("P")
R = TypeVar("R")


class RecordedModel(keras.Model):
    """A functional `keras.Model` whose first layer carries its record; the properties read it there.

    A model made of one of its layers is a plain `keras.Model`, in which `keras_vit.config_of` finds the record too.
    """

    def __setattr__(self, name, value):
        # Keras would keep the layer or its weights, and PyTorch say nothing.
        ours = (vars(kind) for kind in type(self).__mro__ if kind.__module__.startswith("keras_vit."))
        if any(isinstance(own.get(name), property) for own in ours):
            raise AttributeError(
                f"`{name}` of model {self.name!r} is read from its layers and cannot be set. Add a new head to one of "
                'them: keras.Model(model.input, keras.layers.Dense(7)(model.get_layer("pre_logits").output)).'
            )
        super().__setattr__(name, value)

    @property
    def config(self):
        """The record of what the model is."""
        return config_of(self)

    @property
    def preprocessing(self):
        """The `keras_vit.Preprocessing` of its images."""
        return self.config.preprocessing

    @property
    def head(self):
        """The layer that computes the logits; None in a model of features."""
        return next((layer for layer in self.layers if layer.name == "head"), None)


def with_dtype(build: Callable[P, R]) -> Callable[P, R]:
    """Makes a builder's argument `dtype` the policy of the layers that it makes, instead of Keras' global one."""

    @functools.wraps(build)
    def build_in_dtype(*args, **kwargs):
        if kwargs.get("dtype") is None:
            return build(*args, **kwargs)
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(kwargs["dtype"])
        try:
            return build(*args, **kwargs)
        finally:
            keras.config.set_dtype_policy(before)

    return build_in_dtype


def fields_from(kind, given, checkpoint):
    """The fields of a kind of record that a builder's arguments give; None is for the variant or the weights to say."""
    names = [field.name for field in dataclasses.fields(kind)]
    fields = {name: value for name, value in given.items() if name in names and value is not None}
    changes = {name: given[name] for name in ("mean", "std", "interpolation", "crop_fraction")}
    fields["preprocessing"] = preprocessing_of(checkpoint, given["preprocessing"], given["in_channels"], **changes)
    return fields
