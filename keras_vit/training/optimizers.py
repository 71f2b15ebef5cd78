"""Keras optimizers configured as in the papers."""

import keras
from keras import ops


def is_decayed(path: str) -> bool:
    """Whether weight decay applies to the variable of this path: to kernels (also LoRA's), as in big_vision."""
    return "kernel" in path.rsplit("/", 1)[-1]


def decay_groups(model):
    """Splits a model's or layer's trainable variables into two lists: (with weight decay, without).

    Example:

    >>> decayed, kept = decay_groups(keras_vit.ViT("Ti/16", num_layers=1))
    >>> len(decayed), len(kept)
    (6, 14)
    """
    groups = [], []
    for variable in model.trainable_variables:
        groups[not is_decayed(variable.path)].append(variable)
    return groups


def _class_of_backend(optimizer_class):
    """Returns the class that Keras instantiates: on PyTorch a subclass with fused updates, which ours must extend."""
    return type(optimizer_class.__new__(optimizer_class))


class _OwnAverages:
    """Copies the moving averages at the end of `fit`: on JAX they share arrays with the model, which donates them."""

    def finalize_variable_values(self, var_list):
        super().finalize_variable_values(var_list)
        if self.use_ema:
            for variable in var_list:
                variable.assign(ops.copy(variable))


@keras.saving.register_keras_serializable(package="keras_vit")
class AdamW(_OwnAverages, _class_of_backend(keras.optimizers.AdamW)):
    """`keras.optimizers.AdamW` with weight decay on kernels only.

    Keras' own forgets `exclude_from_weight_decay` when a saved model is loaded. Here each build decides from the
    variables' paths; earlier exclusions do not count.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`. All other arguments are those of
            `keras.optimizers.AdamW`.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> model.compile(AdamW(1e-3, weight_decay=0.05), "mse")

    Reference: [arXiv 1711.05101](https://arxiv.org/abs/1711.05101).
    """

    def build(self, variables):
        kept = [v for v in variables if not is_decayed(v.path)]
        if len(kept) < len(variables):
            self.exclude_from_weight_decay(var_list=kept)
        else:
            # No kernel is trained. On PyTorch, Keras cannot decay an empty list.
            self.weight_decay = 0.0
        super().build(variables)


@keras.saving.register_keras_serializable(package="keras_vit")
class SGD(_OwnAverages, _class_of_backend(keras.optimizers.SGD)):
    """`keras.optimizers.SGD` with a moving average of the weights that also works on JAX; it takes the same arguments.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> model.compile(SGD(0.01, momentum=0.9, use_ema=True), "mse")
    """


def adamw(learning_rate, weight_decay=0.05, **options):
    """Builds DeiT's optimizer: `AdamW` with betas 0.9 and 0.999, epsilon 1e-8 and weight decay 0.05 on kernels.

    With weight decay 0.1 (ImageNet-21k, JFT) or 0.3 (ImageNet-1k) it is the Adam of the ViT paper's pre-training, whose
    code decouples the decay too: `w -= lr * (adam(gradient) + weight_decay * w)`.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`; DeiT's is 5e-4 per 512 images of a
            batch.
        weight_decay: Float of at least 0.
        **options: Other Keras options, as in `sgd`.

    Example:

    >>> optimizer = adamw(1e-3, use_ema=True, ema_momentum=0.99996)

    Reference: [arXiv 2012.12877](https://arxiv.org/abs/2012.12877), table 9; [arXiv
    2010.11929](https://arxiv.org/abs/2010.11929), section 4.1 and table 3. Decay only on kernels is big_vision's
    choice. epsilon is Flax' 1e-8, not Keras' 1e-7.
    """
    options = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, **options}
    return AdamW(learning_rate, weight_decay=weight_decay, **_per_update(options))


def sgd(learning_rate, momentum=0.9, global_clipnorm=1.0, **options):
    """Builds the optimizer of the ViT paper's fine-tuning: `SGD` with momentum 0.9, global clipnorm 1 and no decay.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`.
        momentum: Float in [0, 1].
        global_clipnorm: Float above 0, the largest global norm of the gradients; None for no clipping.
        **options: Other Keras options. `gradient_accumulation_steps`: batches per update, by their mean gradient;
            schedules still count batches. `use_ema` and `ema_momentum` (per update, also with accumulation): a moving
            average of the weights, which replaces them at the end of `fit`; `keras.callbacks.SwapEMAWeights` validates
            with it.

    Example:

    >>> optimizer = sgd(0.03, gradient_accumulation_steps=4)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.1 and table 4. The official code keeps
    the momentum in bfloat16; here it has the weights' dtype.
    """
    return SGD(learning_rate, momentum=momentum, global_clipnorm=global_clipnorm, **_per_update(options))


def _per_update(options):
    """Converts `ema_momentum` from per update to per batch, since Keras averages after each batch."""
    steps = options.get("gradient_accumulation_steps")
    if steps and options.get("use_ema"):
        # Keras' default of 0.99.
        options = {**options, "ema_momentum": options.get("ema_momentum", 0.99) ** (1 / steps)}
    return options
