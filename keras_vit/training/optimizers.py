"""Keras' optimizers, set as the papers set them."""

import keras
from keras import ops


def is_decayed(path: str) -> bool:
    """Whether weight decay acts on the variable of a path: on kernels, also depthwise_kernel, lora_kernel_a and so on.

    Biases, the scales and offsets of norms, layer scale, tokens and position embeddings are not decayed, as in
    `wd_mults` of big_vision. DeiT excludes vectors, tokens and position embeddings, which gives the same groups.
    """
    return "kernel" in path.rsplit("/", 1)[-1]


def decay_groups(model):
    """Splits the trainable variables of a model or layer into those that weight decay acts on, and the others.

    Returns:
        (decayed, not decayed), two lists of variables that together are `model.trainable_variables`.

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
    """The class of the instances that Keras makes: on PyTorch a subclass with fused updates, which ours must extend."""
    return type(optimizer_class.__new__(optimizer_class))


class _OwnAverages:
    """Copies the moving averages at the end of `fit`.

    On JAX, Keras gives their arrays to the model, and `evaluate`, `predict` and `fit` donate them: the next save or fit
    would fail with "Array has been deleted".
    """

    def finalize_variable_values(self, var_list):
        super().finalize_variable_values(var_list)
        if self.use_ema:
            for variable in var_list:
                variable.assign(ops.copy(variable))


@keras.saving.register_keras_serializable(package="keras_vit")
class AdamW(_OwnAverages, _class_of_backend(keras.optimizers.AdamW)):
    """`keras.optimizers.AdamW` whose weight decay acts on kernels alone, as `is_decayed` says.

    Keras' own forgets `exclude_from_weight_decay` when a saved model is loaded. Here each build decides by the
    variables' paths, and earlier exclusions do not count.

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
            # Only norms are trained, for example. On PyTorch Keras cannot decay an empty list.
            self.weight_decay = 0.0
        super().build(variables)


@keras.saving.register_keras_serializable(package="keras_vit")
class SGD(_OwnAverages, _class_of_backend(keras.optimizers.SGD)):
    """`keras.optimizers.SGD`, whose moving average also works on JAX.

    Args:
        learning_rate: As for `AdamW`. All other arguments are those of `keras.optimizers.SGD`.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> model.compile(SGD(0.01, momentum=0.9, use_ema=True), "mse")
    """


def adamw(learning_rate, weight_decay=0.05, **options):
    """Builds DeiT's optimizer: AdamW, beta 0.9 and 0.999, epsilon 1e-8, weight decay 0.05 on kernels.

    With another weight decay it is the Adam of the ViT paper's pre-training: 0.1 on ImageNet-21k and JFT, 0.3 on
    ImageNet-1k alone. Its official code (`flax.optim.Adam`) decouples the decay and scales it by the learning rate, as
    AdamW does: `w -= lr * (adam(gradient) + weight_decay * w)`.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`; DeiT's is 5e-4 for 512 images a
            batch, in proportion to the batch.
        weight_decay: Float of at least 0.
        **options: Keras' others, as in `sgd`.

    Returns:
        An `AdamW`.

    Example:

    >>> optimizer = adamw(1e-3, use_ema=True, ema_momentum=0.99996)

    Reference: [arXiv 2012.12877](https://arxiv.org/abs/2012.12877), table 9;
        [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.1 and table 3, which does not say what is not
        decayed: that is big_vision's choice. epsilon is Flax' 1e-8 and not Keras' 1e-7.
    """
    options = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, **options}
    return AdamW(learning_rate, weight_decay=weight_decay, **_per_update(options))


def sgd(learning_rate, momentum=0.9, global_clipnorm=1.0, **options):
    """Builds the optimizer of the ViT paper's fine-tuning: SGD, momentum 0.9, gradients clipped to norm 1, no decay.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`.
        momentum: Float in [0, 1].
        global_clipnorm: Float above 0, the largest norm of all gradients together; None for no clipping.
        **options: Keras' others. `gradient_accumulation_steps`: batches an update, by their mean gradient; schedules
            still count batches. `use_ema` and `ema_momentum`: a moving average of the weights, which replaces them at
            the end of `fit`; `keras.callbacks.SwapEMAWeights` validates with it. With accumulation, `ema_momentum` is
            that of one update, although Keras averages after each batch.

    Returns:
        An `SGD`.

    Example:

    >>> optimizer = sgd(0.03, gradient_accumulation_steps=4)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.1 and table 4. The official code keeps
        the momentum in bfloat16; here it has the weights' dtype.
    """
    return SGD(learning_rate, momentum=momentum, global_clipnorm=global_clipnorm, **_per_update(options))


def _per_update(options):
    """The options with the moving average's momentum for one batch."""
    steps = options.get("gradient_accumulation_steps")
    if steps and "ema_momentum" in options:
        options = {**options, "ema_momentum": options["ema_momentum"] ** (1 / steps)}
    return options
