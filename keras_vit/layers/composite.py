import keras


class CompositeLayer(keras.layers.Layer):
    """A layer made of layers, whose config tells what became of them after they were built.

    Keras writes the config of a model's own layers, from which `__init__` and `build` make those within anew: in
    floats, without LoRA, and frozen only as a whole. What was quantized, has LoRA or is frozen in parts is told by
    `changes` in the config, where there is any; `build` ends with `self.restore_changes()`.

    Args:
        changes: Dict or None, what the config of such a layer told, by the part of each path below this layer's:
            "lora", the rank and alpha of dense layers; "quantized", their modes and options; "frozen", the weights that
            are not trained.
        **kwargs: Those of `keras.layers.Layer`.

    Example:

    >>> layer = keras_vit.layers.MLP(8)
    >>> layer.build((None, 3, 4))
    >>> layer.dense_1.enable_lora(2)
    >>> layer.get_config()["changes"]
    {'lora': {'dense_1': {'rank': 2, 'alpha': 2}}, 'frozen': ['dense_1/kernel']}
    """

    def __init__(self, *, changes=None, **kwargs):
        super().__init__(**kwargs)
        self._changes = changes

    def dense_layers(self):
        """The layers within that may be quantized or have LoRA, once this one is built."""
        raise NotImplementedError

    def restore_changes(self):
        """Does to the layers within, just built, what `changes` tells."""
        changes, self._changes = self._changes or {}, None
        layers = {self._below(layer.path): layer for layer in self.dense_layers()}
        for name, how in changes.get("lora", {}).items():
            layers[name].enable_lora(how["rank"], lora_alpha=how["alpha"])
        self._quantize(changes.get("quantized", {}))
        if "frozen" in changes:
            for weight in self.weights:
                weight.trainable = self._below(weight.path) not in changes["frozen"]

    def get_config(self):
        changes = self._what_changed() if self.built else self._changes
        return {**super().get_config(), **({"changes": changes} if changes else {})}

    def build_from_config(self, config):
        super().build_from_config(config)
        # Where files of earlier versions have it.
        self._quantize(config.get("quantized", {}))

    def _what_changed(self):
        layers = {self._below(layer.path): layer for layer in self.dense_layers()}
        changes = {
            "lora": {
                name: {"rank": layer.lora_rank, "alpha": layer.lora_alpha}
                for name, layer in layers.items()
                if layer.lora_enabled
            },
            "quantized": {
                name: {
                    "mode": layer.quantization_mode,
                    "config": keras.saving.serialize_keras_object(getattr(layer, "quantization_config", None)),
                }
                for name, layer in layers.items()
                if layer.quantization_mode is not None
            },
        }
        # Else the layer's own `trainable` tells all.
        if any(weight.trainable != self.trainable for weight in self.weights):
            changes["frozen"] = [self._below(weight.path) for weight in self.weights if not weight.trainable]
        return {kind: found for kind, found in changes.items() if found or kind == "frozen"}

    def _quantize(self, quantized):
        layers = {self._below(layer.path): layer for layer in self.dense_layers()}
        for name, how in quantized.items():
            options = keras.saving.deserialize_keras_object(how["config"])
            # Older Keras takes no options.
            layers[name].quantize(how["mode"], **({} if options is None else {"config": options}))

    def _below(self, path):
        """The part of a path below this layer's, which is the same in whichever model."""
        return path.removeprefix(f"{self.path}/")
