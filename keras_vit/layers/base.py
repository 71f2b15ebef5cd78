import inspect

import keras

from keras_vit import activations


class Layer(keras.layers.Layer):
    """A Keras layer that keeps each argument of its `__init__` as the attribute of that name; its config is these."""

    @property
    def inherited(self):
        """The options that inner layers take over; a frozen layer that is loaded again passes `trainable` on so."""
        return {"trainable": self.trainable, "dtype": self.dtype_policy}

    def get_config(self):
        config = super().get_config()
        for kind in type(self).__mro__:
            if issubclass(kind, Layer) and "__init__" in vars(kind):
                names = inspect.signature(kind.__init__).parameters
                config.update({name: _plain(getattr(self, name)) for name in names if name in vars(self)})
        return config


class CompositeLayer(Layer):
    """A layer made of layers, whose config records how these were changed after they were built.

    Keras saves the config of a model's own layers alone, from which `__init__` and `build` make the inner ones in
    floats, without LoRA, and frozen only as a whole. `build` ends with `self.restore_changes()`, and `dense_layers`
    returns the inner layers that may be quantized or have LoRA.

    Args:
        changes: Dict or None, from the config of such a layer: "lora" and "quantized" by the inner layer's path, and
            "frozen", the paths of the weights that are not trained.
        **kwargs: Those of `keras.layers.Layer`.
    """

    def __init__(self, *, changes=None, **kwargs):
        super().__init__(**kwargs)
        self._changes = changes

    def restore_changes(self):
        """Changes the inner layers, just built, as the config says."""
        changes, self._changes = self._changes or {}, None
        layers = self._dense_layers_by_path()
        for path, options in changes.get("lora", {}).items():
            layers[path].enable_lora(options["rank"], lora_alpha=options["alpha"])
        self._quantize(changes.get("quantized", {}))
        if "frozen" in changes:
            for weight in self.weights:
                weight.trainable = self._below(weight.path) not in changes["frozen"]

    def get_config(self):
        changes = self._collect_changes() if self.built else self._changes
        return {**super().get_config(), **({"changes": changes} if changes else {})}

    def build_from_config(self, config):
        super().build_from_config(config)
        # Files of earlier versions keep it here.
        self._quantize(config.get("quantized", {}))

    def _collect_changes(self):
        changes = {"lora": {}, "quantized": {}}
        for path, layer in self._dense_layers_by_path().items():
            if layer.lora_enabled:
                changes["lora"][path] = {"rank": layer.lora_rank, "alpha": layer.lora_alpha}
            if layer.quantization_mode is not None:
                config = keras.saving.serialize_keras_object(getattr(layer, "quantization_config", None))
                changes["quantized"][path] = {"mode": layer.quantization_mode, "config": config}
        changes = {kind: found for kind, found in changes.items() if found}
        # Otherwise the layer's own `trainable` says it.
        if any(weight.trainable != self.trainable for weight in self.weights):
            changes["frozen"] = [self._below(weight.path) for weight in self.weights if not weight.trainable]
        return changes

    def _quantize(self, quantized):
        layers = self._dense_layers_by_path()
        for path, options in quantized.items():
            config = keras.saving.deserialize_keras_object(options["config"])
            # Older Keras takes no config.
            layers[path].quantize(options["mode"], **({} if config is None else {"config": config}))

    def _dense_layers_by_path(self):
        return {self._below(layer.path): layer for layer in self.dense_layers()}

    def _below(self, path):
        """The part of a path below this layer's, which is the same in any model."""
        return path.removeprefix(f"{self.path}/")


def _plain(value):
    """An argument as JSON has it."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, keras.initializers.Initializer):
        return keras.initializers.serialize(value)
    return activations.serialize(value) if callable(value) else value
