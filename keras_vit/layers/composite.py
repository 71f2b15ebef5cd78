import keras


class CompositeLayer(keras.layers.Layer):
    """A layer made of layers, which a .keras file brings back quantized where they were.

    `model.quantize("int8")` quantizes the dense layers within the model's layers, and Keras writes only the latter to a
    file: those within are made anew, by `__init__` and `build`, as they were before. So what was quantized, and how, is
    written beside the shape that the layer was built for.

    Args:
        **kwargs: Those of `keras.layers.Layer`.

    Example:

    >>> layer = keras_vit.layers.MLP(8)
    >>> layer.build((None, 3, 4))
    >>> layer.dense_1.quantize("int8")
    >>> sorted(layer.get_build_config()["quantized"])
    ['dense_1']
    """

    def get_build_config(self):
        config = super().get_build_config()
        quantized = {
            name: {
                "mode": layer.quantization_mode,
                "config": keras.saving.serialize_keras_object(getattr(layer, "quantization_config", None)),
            }
            for name, layer in self._parts().items()
            if layer.quantization_mode is not None
        }
        return {**config, "quantized": quantized} if quantized else config

    def build_from_config(self, config):
        super().build_from_config(config)
        parts = self._parts()
        for name, how in config.get("quantized", {}).items():
            options = keras.saving.deserialize_keras_object(how["config"])
            # Older Keras takes no options.
            parts[name].quantize(how["mode"], **({} if options is None else {"config": options}))

    def _parts(self):
        """The layers within, by the part of their paths below this one's, which is the same in whichever model."""
        parts = [layer for layer in self._flatten_layers(include_self=False) if layer.path]
        return {layer.path.removeprefix(f"{self.path}/"): layer for layer in parts}
