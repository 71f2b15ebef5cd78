"""Shared parts of the model builders."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import keras

from keras_vit.config import config_of
from keras_vit.layers import direct
from keras_vit.models import graph
from keras_vit.models.checkpoint import preprocessing_of

P = ParamSpec("P")
R = TypeVar("R")


class RecordedModel(keras.Model):
    """A functional `keras.Model` whose properties read the config in its first layer."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Keras would track the layers in it.
        vars(self)["_reading"] = graph.last_reading(self)
        # By it, `compile` scales the loss. A functional model's config does not keep it.
        if any(layer.dtype_policy.name == "mixed_float16" for layer in self.layers):
            self.dtype_policy = "mixed_float16"

    def __setattr__(self, name, value):
        # Otherwise Keras would track the new layer, and on PyTorch no error would say that it is unused.
        own = getattr(type(self), name, None)
        if isinstance(own, property) and own.fset is None:
            raise AttributeError(
                f"`{name}` of model {self.name!r} is read from its layers and cannot be set. Add a new head to one of "
                'them: keras.Model(model.input, keras.layers.Dense(7)(model.get_layer("pre_logits").output)).'
            )
        super().__setattr__(name, value)

    def _run_through_graph(self, inputs, operation_fn=lambda operation: operation, **options):
        # Not in symbolic calls, for which Keras has options: they would record what is changed here.
        if options or any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(inputs)):
            return super()._run_through_graph(inputs, operation_fn, **options)
        if self._reading is not None:
            operation_fn = graph.reads_leading_tokens(self._reading, operation_fn)
        if direct.is_torch_without_gradients():
            return graph.run_and_free(self, inputs, operation_fn)
        return super()._run_through_graph(inputs, operation_fn)

    @property
    def config(self):
        """The model's config, such as a `ViTConfig`."""
        return config_of(self)

    @property
    def preprocessing(self):
        """The `keras_vit.Preprocessing` of the model's images."""
        return self.config.preprocessing

    @property
    def head(self):
        """The layer that computes the logits; None without a head."""
        return next((layer for layer in self.layers if layer.name == "head"), None)


def cut_from(model, inputs, outputs, **kwargs):
    """Returns a functional model within `model`, of its kind if it is one of this package's, and so as fast."""
    kind = type(model) if isinstance(model, RecordedModel) else keras.Model
    return kind(inputs, outputs, **kwargs)


def with_dtype(build: Callable[P, R]) -> Callable[P, R]:
    """Decorates a builder to make its argument `dtype` the global dtype policy while it runs."""

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


def fields_from(builder, kind, given, checkpoint, *settings):
    """Config fields from a builder's arguments, without those left at None, which the variant or the weights set.

    Of these, the `settings` that a checkpoint tells are among the fields.
    """
    names = [field.name for field in dataclasses.fields(kind)]
    unset = {name for name, parameter in inspect.signature(builder).parameters.items() if parameter.default is None}
    fields = {name: given[name] for name in names if name in given and not (given[name] is None and name in unset)}
    changes = {name: given[name] for name in ("mean", "std", "interpolation", "crop_fraction")}
    fields["preprocessing"] = preprocessing_of(checkpoint, given["preprocessing"], given["in_channels"], **changes)
    told = {} if checkpoint is None else checkpoint.settings
    return {**{name: told[name] for name in settings if told.get(name) is not None}, **fields}


def given_settings(given):
    """The settings that an argument of a builder sets, which may differ from those of its weights."""
    names = ("activation", "resnet_epsilons", "pool_padding", "padding", "batch_norm_epsilon")
    return tuple(name for name in names if given.get(name) is not None)
