import inspect

import keras

from keras_vit import activations, arguments
from keras_vit.layers import costs
from keras_vit.layers.dense import Dense


class Layer(keras.layers.Layer):
    """A Keras layer whose `get_config` returns its `__init__` arguments, read from the attributes of the same names."""

    # If True and `cost_steps` returns None, the cost of a call is the sum of the costs of all operations in `call`.
    adds_up = False

    @property
    def inherited(self):
        """The arguments that this layer passes to its inner layers.

        `trainable` is one of them, so that the inner layers of a frozen layer are frozen after loading too.
        """
        return {"trainable": self.trainable, "dtype": self.dtype_policy}

    def set_booleans(self, **values):
        """Sets an attribute for each argument; raises if one is not a bool."""
        for name, value in values.items():
            setattr(self, name, arguments.boolean(name, value))

    def dropout_layer(self, kind, rate, seed, name):
        """Returns a dropout layer of class `kind`, or None if the rate is 0.

        Keras visits all layers in each training step, so fewer layers take less time.
        """
        return kind(rate, seed=seed, dtype=self.dtype_policy, name=name) if rate else None

    def run(self, layer, x, **kwargs):
        """Returns `layer(x, **kwargs)` for an inner layer.

        If possible, this method calls only `layer.call`, because in small models the work of Keras before and after
        `call` takes longer than the matrix products. Hooks and activity regularizers of the inner layer then have no
        effect.
        """
        # `layer(x)` casts the inputs and variables. The layers in _PLAIN cast their variables in `call` too. Quantized
        # layers have another policy than this layer. In a distribution, Keras shards the outputs after `call`.
        policy = self.dtype_policy
        is_plain = (
            isinstance(layer, _PLAIN)
            and layer.built
            and layer.dtype_policy is policy
            and policy.quantization_mode is None
            and not isinstance(policy, keras.dtype_policies.DTypePolicyMap)
            and not isinstance(x, keras.KerasTensor)
            and keras.backend.standardize_dtype(x.dtype) == policy.compute_dtype
            and keras.distribution.distribution() is None
        )
        return layer.call(x, **kwargs) if is_plain else layer(x, **kwargs)

    def compute_output_shape(self, input_shape, *others):
        """Returns the shape of the first input. A layer whose output has another shape overrides this method."""
        return input_shape

    def multiply_adds(self, *input_shapes):
        """Returns the multiply-adds for one image; builds the layer if it is not built.

        Args:
            *input_shapes: The shape of each input tensor, including the batch axis, which may be None or any size.

        Returns:
            Int, 0 for a layer without matrix products and convolutions. None if the number is unknown for an inner
            layer or an operation in `call`.

        Example:
        >>> keras_vit.layers.PatchEmbedding(768, patch_size=16).multiply_adds((None, 224, 224, 3))
        115605504
        """
        if not self.built:
            self.build(*input_shapes)
        inputs = [keras.KerasTensor((1, *shape[1:]), dtype=self.compute_dtype) for shape in input_shapes]
        # The cost does not depend on the rotary positions, so any shape is valid.
        needs_rotary = getattr(self, "rotary_layout", None) is not None
        options = {"rotary": keras.KerasTensor((1, 2, 4))} if needs_rotary else {}
        output = keras.tree.flatten(self.compute_output_spec(*inputs, **options))[0]
        return costs.total(costs.operation_steps(self, inputs, options, output))

    def cost_steps(self, input_shape, **call_arguments):
        """Returns a list with a tuple for each step of a call on one image.

        The tuple is (name, multiply-adds, number of values that training keeps for the gradient). If the method returns
        None and `adds_up` is True, the steps are the operations in `call`. If it returns None and `adds_up` is False,
        the whole call is one step. This step has the multiply-adds of the product with the layer's `kernel`, or 0 if
        the layer has no kernel.
        """
        return None

    def spec(self, *shapes):
        """Returns a `KerasTensor` of the shape, in the compute dtype. Several shapes give a tuple."""
        outputs = tuple(keras.KerasTensor(shape, dtype=self.compute_dtype) for shape in shapes)
        return outputs if len(outputs) > 1 else outputs[0]

    def get_config(self):
        config = super().get_config()
        for kind in type(self).__mro__:
            if issubclass(kind, Layer) and "__init__" in vars(kind):
                names = inspect.signature(kind.__init__).parameters
                # Keep Keras' own values. For example, the attribute `dtype` is only the dtype of the variables.
                names = [name for name in names if name not in config and hasattr(self, name)]
                config.update({name: _plain(getattr(self, name)) for name in names})
        return config


_PLAIN = (Layer, Dense, keras.layers.Dropout, keras.layers.LayerNormalization)


# Keras saves the config of the outer layer, but not the LoRA, quantization and freezing of its inner layers. Subclasses
# call `restore_changes` at the end of `build`. If a subclass has dense layers, its `dense_layers` returns them.
class CompositeLayer(Layer):
    """A layer with inner layers. Its config also contains the LoRA, quantization and frozen weights of inner layers."""

    adds_up = True

    def __init__(self, *, changes=None, **kwargs):
        super().__init__(**kwargs)
        self._changes = changes

    def dense_layers(self):
        return ()

    def restore_changes(self):
        """Applies the LoRA, quantization and freezing from the config to the inner layers."""
        changes, self._changes = self._changes or {}, None
        layers = self._dense_layers_by_path()
        for path, options in changes.get("lora", {}).items():
            layers[path].enable_lora(options["rank"], lora_alpha=options["alpha"])
        for path, options in changes.get("quantized", {}).items():
            # If the dtype policy is a `DTypePolicyMap`, Keras quantized the inner layer when it was built.
            if layers[path].quantization_mode is None:
                config = keras.saving.deserialize_keras_object(options["config"])
                # In older versions of Keras, `quantize` has no argument `config`.
                layers[path].quantize(options["mode"], **({} if config is None else {"config": config}))
        if "frozen" in changes:
            for weight in self._trained():
                weight.trainable = self._below(weight.path) not in changes["frozen"]
            self.keep_statistics()

    def keep_statistics(self):
        """Freezes batch normalization layers whose weights are frozen, so that their statistics stay the same too."""
        for layer in keras.tree.flatten(list(vars(self).values())):
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.trainable = layer.gamma.trainable

    def get_config(self):
        config = super().get_config()
        if not self.built:
            return {**config, **({"changes": self._changes} if self._changes else {})}
        changes = {"lora": {}, "quantized": {}}
        for path, layer in self._dense_layers_by_path().items():
            if layer.lora_enabled:
                changes["lora"][path] = {"rank": layer.lora_rank, "alpha": layer.lora_alpha}
            if layer.quantization_mode is not None:
                quantization = keras.saving.serialize_keras_object(getattr(layer, "quantization_config", None))
                changes["quantized"][path] = {"mode": layer.quantization_mode, "config": quantization}
        changes = {kind: found for kind, found in changes.items() if found}
        weights = self._trained()
        # If all weights are frozen, or none, the config already shows this by `trainable`.
        if any(weight.trainable != self.trainable for weight in weights):
            changes["frozen"] = [self._below(weight.path) for weight in weights if not weight.trainable]
        return {**config, **({"changes": changes} if changes else {})}

    def _trained(self):
        """Returns all weights except the moving means and variances of batch normalization, which are never trained."""
        return [weight for weight in self.weights if not weight.path.endswith(("/moving_mean", "/moving_variance"))]

    def _dense_layers_by_path(self):
        return {self._below(layer.path): layer for layer in self.dense_layers()}

    def _below(self, path):
        """Converts the path of a weight or inner layer to a path relative to this layer, the same in every model."""
        return path.removeprefix(f"{self.path}/")


def _plain(value):
    """Converts an argument to a JSON-serializable value."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, keras.initializers.Initializer):
        return keras.initializers.serialize(value)
    return activations.serialize(value) if callable(value) else value
