"""Layer-wise learning-rate decay: layers further from the head learn more slowly."""

from collections.abc import Mapping

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.models.backbone import find_parts


def layer_depths(model: keras.Model) -> dict[str, int]:
    """Maps the name of each layer, also in a nested model, to its depth, an int from 0.

    Layers before the first block, such as the embedding, have depth 0. Block i of n has depth i, counted from 1. Layers
    after the last block (norm, pooling, head), or around a nested model, have depth n + 1.
    """
    parts = find_parts(model)
    depths, levels = {}, {}
    for level, layers in enumerate((parts.below, *([block] for block in parts.blocks), parts.above, parts.others)):
        for layer in layers:
            if layer.weights and levels.setdefault(layer.name, level) != level:
                raise ValueError(
                    "Expected names for the layers around the model that differ from those of the layers in it. "
                    f"Received: model {model.name!r} with two layers named {layer.name!r}"
                )
            if layer.weights or layer.name not in depths:
                depths[layer.name] = min(level, len(parts.blocks) + 1)
    return depths


def layer_multipliers(model, decay=0.75):
    """Returns {layer name: factor} for `LayerDecay.from_model`."""
    if arguments.positive_number("decay", decay) > 1:
        raise arguments.invalid("decay", "a number in (0, 1]", decay)
    depths = layer_depths(model)
    top = max(depths.values())
    return {name: float(decay) ** (top - depth) for name, depth in depths.items()}


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerDecay(keras.optimizers.Optimizer):
    """Wraps an optimizer and scales its updates, weight decay included, by a factor per layer.

    If the update is proportional to the learning rate (SGD, Adam and their variants), this equals a learning rate per
    layer. Schedules and callbacks set the `learning_rate` of the wrapped optimizer, and it clips by the global norm of
    all gradients. A `keras.optimizers.MultiOptimizer` with one optimizer per layer can do neither.

    Args:
        optimizer: The `keras.optimizers.Optimizer` to wrap, or its name, without `use_ema`, which would average the
            unscaled weights.
        multipliers: A dict from layer names to factors. `from_model` computes it for a model.

    Raises:
        ValueError: If the optimizer has `use_ema`, or, when built, a weight belongs to no layer of `multipliers`.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=2)
    >>> optimizer = LayerDecay.from_model(keras.optimizers.AdamW(1e-3), model, decay=0.5)
    >>> [optimizer.multipliers[name] for name in ("patch_embedding", "block_00", "block_01", "norm", "head")]
    [0.125, 0.25, 0.5, 1.0, 1.0]
    >>> model.compile(optimizer, "mse")

    Reference: [arXiv 2106.08254](https://arxiv.org/abs/2106.08254), section 3.2.
    """

    def __init__(self, optimizer, multipliers, name="layer_decay"):
        optimizer = keras.optimizers.get(optimizer)
        if not isinstance(multipliers, Mapping):
            expected = "a dict from layer names to factors, which `LayerDecay.from_model` computes"
            raise arguments.invalid("multipliers", expected, multipliers)
        if optimizer.use_ema:
            raise ValueError(
                f"Expected an optimizer with use_ema=False. Received: {optimizer.name!r} with use_ema=True"
            )
        # This learning rate is never used.
        super().__init__(learning_rate=0.0, name=name)
        # Keras' callbacks look for a wrapped optimizer by this name.
        self.inner_optimizer = optimizer
        self.multipliers = {layer: arguments.number(layer, factor) for layer, factor in multipliers.items()}

    @classmethod
    def from_model(cls, optimizer, model, decay=0.75, **options):
        """Wraps an optimizer for a model: the factor is `decay` to the power of a layer's distance from the top.

        The head and all layers after the last block have factor 1. Each block has `decay` times the factor of the block
        above it, and all layers below the first block have `decay` times its factor.

        Args:
            optimizer: As in `LayerDecay`.
            model: A model of this package's builders, with its own head or yours, or a model that nests one as a layer.
            decay: Float in (0, 1].
            **options: Other arguments of `LayerDecay`.

        Raises:
            ValueError: If `decay` is out of range, the model has no blocks, or layers around and in a nested model have
                the same name.
        """
        return cls(optimizer, layer_multipliers(model, decay), **options)

    def build(self, variables):
        for variable in variables:
            if self._layer(variable) is None:
                raise ValueError(
                    f"Expected weights of the layers {', '.join(self.multipliers)}. Received: {variable.path!r}"
                )
        self.inner_optimizer.build(variables)
        super().build(variables)

    def apply(self, grads, trainable_variables=None):
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        if not self.built:
            self.build(variables)
        slowed = [(v, self.multipliers[self._layer(v)]) for v in variables]
        slowed = [(v, factor, ops.copy(ops.stop_gradient(v))) for v, factor in slowed if factor != 1]
        self.inner_optimizer.apply(grads, trainable_variables)
        for variable, factor, before in slowed:
            variable.assign(before + factor * (ops.stop_gradient(variable) - before))

    def _layer(self, variable):
        """Returns the layer of `multipliers` that a variable belongs to; outer models may precede it in the path."""
        return next((name for name in variable.path.split("/") if name in self.multipliers), None)

    @property
    def variables(self):
        return [*super().variables, *self.inner_optimizer.variables]

    def set_weights(self, weights):
        num_own = len(super().variables)
        super().set_weights(weights[:num_own])
        self.inner_optimizer.set_weights(weights[num_own:])

    @property
    def iterations(self):
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self):
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    def scale_loss(self, loss):
        return self.inner_optimizer.scale_loss(loss)

    def get_config(self):
        return {
            "optimizer": keras.optimizers.serialize(self.inner_optimizer),
            "multipliers": self.multipliers,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        optimizer = keras.optimizers.deserialize(config["optimizer"], custom_objects)
        return cls(**{**config, "optimizer": optimizer})
