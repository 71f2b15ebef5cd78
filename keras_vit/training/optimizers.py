"""Keras optimizers configured as in the papers."""

import math
import numbers
import re
from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.models.backbone import find_parts

# In these schedules, `step` is the number of finished steps: a number, a NumPy array or a float tensor.


def warmup(step, warmup_steps):
    """Returns the factor of a linear warm-up, which rises from 0 to 1. It is always 1 if `warmup_steps` is 0."""
    if not warmup_steps:
        return _library(step).ones_like(step)
    return _library(step).minimum(1.0, step / warmup_steps)


def constant(step, peak, total_steps, warmup_steps=0):
    """Returns a learning rate that rises linearly from 0 to `peak` in `warmup_steps`, then stays at `peak`."""
    del total_steps
    return peak * warmup(step, warmup_steps)


def linear(step, peak, total_steps, warmup_steps=0, end=1e-5):
    """Returns a learning rate that warms up to `peak`, then falls linearly to `end` at step `total_steps`."""
    lr = end + (peak - end) * (1 - _progress(step, total_steps, warmup_steps))
    return lr * warmup(step, warmup_steps)


def cosine(step, peak, total_steps, warmup_steps=0, end=0.0):
    """Returns a learning rate that warms up to `peak`, then falls along half a cosine to `end` at `total_steps`."""
    wave = _library(step).cos(math.pi * _progress(step, total_steps, warmup_steps))
    return (end + (peak - end) * 0.5 * (1 + wave)) * warmup(step, warmup_steps)


def rsqrt(step, peak, total_steps, warmup_steps=0, timescale=10_000, cooldown_steps=0):
    """Returns the rate of an inverse square root schedule (arXiv 2106.04560, section 3.5), optionally cooled to 0."""
    lib = _library(step)
    lr = peak / lib.sqrt(1 + lib.maximum(0.0, step - warmup_steps) / timescale) * warmup(step, warmup_steps)
    if cooldown_steps:
        lr = lr * lib.clip((total_steps - step) / cooldown_steps, 0.0, 1.0)
    return lr


DECAYS = {"constant": constant, "linear": linear, "cosine": cosine, "rsqrt": rsqrt}


def _library(step):
    """Returns the library that computes with `step`: `keras.ops` for a tensor, NumPy for a number or an array."""
    return ops if ops.is_tensor(step) else np


def _progress(step, total_steps, warmup_steps):
    return _library(step).clip((step - warmup_steps) / (total_steps - warmup_steps), 0.0, 1.0)


@keras.saving.register_keras_serializable(package="keras_vit")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A Keras schedule with a linear warm-up and a decay.

    Args:
        peak: Float above 0, the learning rate at the end of the warm-up.
        total_steps: Int, the number of batches in the whole training. With gradient accumulation, it still counts
            batches, not updates.
        warmup_steps: Int, less than `total_steps`; 0 for no warm-up.
        decay: "cosine", "linear", "constant" or "rsqrt".
        **options: "linear" and "cosine" have the option `end`, the final learning rate. Its default is 1e-5 for
            "linear", as in the official code, and 0 for "cosine". "rsqrt" has two options. After `timescale` steps
            (default 10,000) from the end of the warm-up, the learning rate is `peak / sqrt(2)`. `cooldown_steps`
            (default 0) is the length of a final linear decay to 0.

    Raises:
        ValueError: If an argument is out of range, or `decay` does not have one of the `options`.

    Example:
    >>> schedule = WarmupDecay(3e-3, total_steps=90_000, warmup_steps=10_000, decay="linear")
    >>> round(float(schedule(10_000)), 6)
    0.003

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.1 and tables 3 and 4.
    """

    def __init__(self, peak, total_steps, warmup_steps=0, decay="cosine", **options):
        self.peak = arguments.positive_number("peak", peak)
        self.total_steps = arguments.positive_int("total_steps", total_steps)
        self.warmup_steps = arguments.non_negative_int("warmup_steps", warmup_steps)
        self.decay = arguments.choice("decay", decay, tuple(DECAYS))
        if self.warmup_steps >= self.total_steps:
            raise arguments.invalid("warmup_steps", f"less than total_steps={self.total_steps}", warmup_steps)
        allowed = {"linear": ("end",), "cosine": ("end",), "rsqrt": ("timescale", "cooldown_steps")}.get(decay, ())
        if unknown := sorted(set(options) - set(allowed)):
            expected = f"Expected only these options with decay={decay!r}: {', '.join(allowed) or 'none'}"
            raise ValueError(f"{expected}. Received: {', '.join(unknown)}")
        checks = {"timescale": arguments.positive_number, "cooldown_steps": arguments.non_negative_number}
        self.options = {key: checks.get(key, arguments.number)(key, value) for key, value in options.items()}

    def __call__(self, step):
        step = ops.cast(step, "float32")
        return DECAYS[self.decay](step, self.peak, self.total_steps, self.warmup_steps, **self.options)

    def get_config(self):
        names = ("peak", "total_steps", "warmup_steps", "decay")
        return {**{name: getattr(self, name) for name in names}, **self.options}


def is_decayed(path: str) -> bool:
    """Returns True for the path of a kernel or LoRA kernel. As in big_vision, weight decay applies only to kernels."""
    return "kernel" in path.rsplit("/", 1)[-1]


def _class_of_backend(optimizer_class):
    """Returns the class to extend. On PyTorch, this is Keras' subclass of `optimizer_class` with fused updates."""
    return type(optimizer_class.__new__(optimizer_class))


class _Averaged:
    """Base class whose `ema_momentum` applies to each update. In Keras, it applies to each batch.

    At the end of `fit`, it copies the averages, so that the model does not share arrays with the optimizer.
    """

    def __init__(self, learning_rate, *args, **options):
        # The learning rate may also be a schedule, a function or a tensor.
        if isinstance(learning_rate, numbers.Real):
            arguments.non_negative_number("learning_rate", learning_rate)
        arguments.optional(arguments.positive_number, "global_clipnorm", options.get("global_clipnorm"))
        super().__init__(learning_rate, *args, **options)
        if self.use_ema and self.gradient_accumulation_steps:
            # Keras averages after each batch, also between updates. Convert the momentum, which is meant per update.
            self.ema_momentum **= 1 / self.gradient_accumulation_steps

    @classmethod
    def from_config(cls, config, custom_objects=None):
        optimizer = super().from_config(dict(config), custom_objects)
        # The config already contains the momentum per batch, so do not convert it again.
        optimizer.ema_momentum = config.get("ema_momentum", optimizer.ema_momentum)
        return optimizer

    def finalize_variable_values(self, var_list):
        super().finalize_variable_values(var_list)
        if self.use_ema:
            # On JAX, the variables now hold the same arrays as the averages. Copy these arrays, because a train step
            # deletes the arrays that it receives.
            for variable in var_list:
                variable.assign(ops.copy(variable))


@keras.saving.register_keras_serializable(package="keras_vit")
class AdamW(_Averaged, _class_of_backend(keras.optimizers.AdamW)):
    """`keras.optimizers.AdamW` with weight decay only on kernels, and with DeiT's default arguments.

    With weight decay 0.1 (ImageNet-21k, JFT) or 0.3 (ImageNet-1k), it equals the optimizer of the ViT paper's
    pre-training. The paper calls its optimizer Adam, but the paper's code also decouples the decay from the gradient.
    When a saved model is loaded, `build` finds the kernels again by their paths. In contrast, `keras.optimizers.AdamW`
    loses `exclude_from_weight_decay` when a saved model is loaded.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`. DeiT uses 5e-4 * batch size / 512.
        weight_decay: Float of at least 0.
        beta_1, beta_2: Floats in [0, 1), the decay rates of the two moments.
        epsilon: Float above 0. The default is 1e-8 as in Flax; the default of Keras is 1e-7.
        **options: Other options of the Keras optimizer, as in `SGD`.

    Example:
    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> model.compile(AdamW(1e-3, use_ema=True, ema_momentum=0.99996), "mse")

    Reference: [arXiv 1711.05101](https://arxiv.org/abs/1711.05101); [arXiv
    2012.12877](https://arxiv.org/abs/2012.12877), table 9; [arXiv 2010.11929](https://arxiv.org/abs/2010.11929),
    section 4.1 and table 3. Decay only on kernels is big_vision's choice.
    """

    def __init__(self, learning_rate=0.001, weight_decay=0.05, beta_1=0.9, beta_2=0.999, epsilon=1e-8, **options):
        arguments.optional(arguments.non_negative_number, "weight_decay", weight_decay)
        arguments.each(arguments.rate, beta_1=beta_1, beta_2=beta_2)
        arguments.positive_number("epsilon", epsilon)
        super().__init__(learning_rate, weight_decay, beta_1, beta_2, epsilon, **options)
        self._excluded = lambda variable: False

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Excludes these variables too, as in Keras. Variables other than kernels are always excluded."""
        super().exclude_from_weight_decay(var_list, var_names)
        names, listed = [*(var_names or ())], [*(var_list or ())]
        self._excluded = lambda variable: (
            any(re.search(name, variable.name) for name in names) or any(variable is each for each in listed)
        )

    def build(self, variables):
        kept = [v for v in variables if not is_decayed(v.path) or self._excluded(v)]
        if len(kept) < len(variables):
            super().exclude_from_weight_decay(var_list=kept)
        else:
            # If no kernel is trained, switch weight decay off, because on PyTorch it fails without a weight to decay.
            self.weight_decay = 0.0
        super().build(variables)


@keras.saving.register_keras_serializable(package="keras_vit")
class SGD(_Averaged, _class_of_backend(keras.optimizers.SGD)):
    """`keras.optimizers.SGD` with the defaults of the ViT paper's fine-tuning.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`.
        momentum: Float in [0, 1].
        global_clipnorm: Float above 0, the largest global norm of the gradients; None for no clipping. The default is
            1, or None with `clipnorm` or `clipvalue`.
        **options: Other options of the Keras optimizer. With `gradient_accumulation_steps`, each update uses the mean
            gradient of that many batches; schedules still count batches. With `use_ema`, the moving average of the
            weights replaces the weights at the end of `fit`; `ema_momentum` is per update. To validate with the
            average, use `keras.callbacks.SwapEMAWeights`.

    Example:
    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> model.compile(SGD(0.03, gradient_accumulation_steps=4), "mse")

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.1 and table 4. The official code keeps
    the momentum in bfloat16; this class keeps it in the weights' dtype.
    """

    def __init__(self, learning_rate=0.01, momentum=0.9, **options):
        arguments.share("momentum", momentum)
        if options.get("clipnorm") is None and options.get("clipvalue") is None:
            options.setdefault("global_clipnorm", 1.0)
        super().__init__(learning_rate, momentum, **options)


def layer_depths(model: keras.Model) -> dict[str, int]:
    """Returns {layer name: depth}: 0 before the n blocks, i for the i-th block (from 1), and n + 1 after the blocks."""
    parts = find_parts(model)
    depths, levels = {}, {}
    for level, layers in enumerate((parts.below, *([block] for block in parts.blocks), parts.above, parts.others)):
        for layer in layers:
            if layer.weights and levels.setdefault(layer.name, level) != level:
                expected = "Expected different names for the layers in a nested model and the layers around it"
                raise ValueError(f"{expected}. Received: model {model.name!r} with two layers named {layer.name!r}")
            if layer.weights or layer.name not in depths:
                depths[layer.name] = min(level, len(parts.blocks) + 1)
    return depths


def layer_multipliers(model, decay=0.75):
    """Returns {layer name: factor} for `LayerDecay.from_model`."""
    if arguments.positive_number("decay", decay) > 1:
        raise arguments.invalid("decay", "a number in (0, 1]", decay)
    depths = layer_depths(model)
    return {name: float(decay) ** (max(depths.values()) - depth) for name, depth in depths.items()}


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerDecay(keras.optimizers.Optimizer):
    """Wraps an optimizer and scales its updates, weight decay included, by a factor per layer.

    If the update is proportional to the learning rate (SGD, Adam and their variants), this is the same as a separate
    learning rate for each layer. Schedules and callbacks set the `learning_rate` of the wrapped optimizer. The wrapped
    optimizer also clips the gradients.

    Args:
        optimizer: The `keras.optimizers.Optimizer` to wrap, or its name. It must not have `use_ema`, which would
            average the weights before their updates are scaled.
        multipliers: A dict from layer names to factors. `from_model` computes it for a model.

    Raises:
        ValueError: If the optimizer has `use_ema`, or if `build` gets a weight of a layer that is not in `multipliers`.

    Example:
    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=2)
    >>> optimizer = LayerDecay.from_model(keras.optimizers.AdamW(1e-3), model, decay=0.5)
    >>> [optimizer.multipliers[name] for name in ("patch_embedding", "block_00", "block_01", "norm", "head")]
    [0.125, 0.25, 0.5, 1.0, 1.0]
    >>> model.compile(optimizer, "mse")

    Reference: [arXiv 2106.08254](https://arxiv.org/abs/2106.08254), section 3.2.
    """

    def __init__(self, optimizer, multipliers, name="layer_decay"):
        optimizer = arguments.instance("optimizer", keras.optimizers.get(optimizer), keras.optimizers.Optimizer)
        if not isinstance(multipliers, Mapping):
            expected = "a dict from layer names to factors, which `LayerDecay.from_model` computes"
            raise arguments.invalid("multipliers", expected, multipliers)
        if optimizer.use_ema:
            raise ValueError(
                f"Expected an optimizer with use_ema=False. Received: {optimizer.name!r} with use_ema=True"
            )
        # The wrapped optimizer has the learning rate. This value is never used.
        super().__init__(learning_rate=0.0, name=name)
        # Keras' callbacks expect a wrapped optimizer in an attribute of this name.
        self.inner_optimizer = optimizer
        self.multipliers = {layer: arguments.number(layer, factor) for layer, factor in multipliers.items()}

    @classmethod
    def from_model(cls, optimizer, model, decay=0.75, **options):
        """Wraps an optimizer for a model, with smaller factors for layers nearer to the input.

        The head and all layers after the last block have the factor 1. Each block has `decay` times the factor of the
        block after it, and all layers before the first block have `decay` times the factor of the first block.

        Args:
            optimizer: As in `LayerDecay`.
            model: A model of this package, with its original head or your own, or a model that contains such a model as
                a layer.
            decay: Float in (0, 1].
            **options: Other arguments of `LayerDecay`.

        If the model has no blocks, or a layer in a nested model has the same name as a layer around it, a ValueError is
        raised.
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
        """Returns the layer name in `multipliers` that is a part of the variable's path, or None if there is none."""
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
