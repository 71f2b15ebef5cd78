"""Keras' optimizers, set as the papers set them."""

import keras
from keras import ops

from keras_vit.training.decay_groups import is_decayed


def _class_of_backend(optimizer_class):
    """The class that Keras makes instances of: on PyTorch a subclass that updates all weights in a few fused calls.

    Keras chooses it for its own classes alone, so that a subclass of ours has to derive from it.
    """
    return type(optimizer_class.__new__(optimizer_class))


class _OwnAverages:
    """Makes the moving average survive the end of `fit` on JAX.

    There Keras hands the arrays of the averages themselves to the model, and `evaluate`, `predict` and `fit` donate
    them, which deletes the averages too: "Array has been deleted" at the next save or fit.
    """

    def finalize_variable_values(self, var_list):
        super().finalize_variable_values(var_list)
        if self.use_ema:
            for variable in var_list:
                variable.assign(ops.copy(variable))


@keras.saving.register_keras_serializable(package="keras_vit")
class AdamW(_OwnAverages, _class_of_backend(keras.optimizers.AdamW)):
    """`keras.optimizers.AdamW` whose weight decay acts on kernels alone, as `is_decayed` says.

    What `exclude_from_weight_decay` excludes in Keras' own is forgotten when a saved model is loaded; here it is
    decided by the variables' paths each time the optimizer is built, and what else is excluded before that does not
    count. With `use_ema=True` it also mends Keras' average on JAX.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`, as all other arguments are
            `keras.optimizers.AdamW`'s.

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
            # As where only the norms are trained. On PyTorch Keras cannot decay an empty list.
            self.weight_decay = 0.0
        super().build(variables)


@keras.saving.register_keras_serializable(package="keras_vit")
class SGD(_OwnAverages, _class_of_backend(keras.optimizers.SGD)):
    """`keras.optimizers.SGD`, with Keras' moving average mended on JAX.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`, as all other arguments are
            `keras.optimizers.SGD`'s.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> model.compile(SGD(0.01, momentum=0.9, use_ema=True), "mse")
    """


def adam(learning_rate, weight_decay=0.1, **options):
    """Builds the optimizer of the paper's pre-training: Adam, beta 0.9 and 0.999, high weight decay on kernels.

    The decay is decoupled and scaled by the learning rate, `w -= lr * (adam(gradient) + weight_decay * w)`, as in the
    official code's optimizer (`flax.optim.Adam`), which is what `keras.optimizers.AdamW` computes.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`.
        weight_decay: Float, 0.1 for ImageNet-21k and JFT, 0.3 for ImageNet-1k alone.
        **options: Keras' others, as in `sgd`.

    Returns:
        An `AdamW`.

    Example:

    >>> optimizer = adam(1e-3, weight_decay=0.3, gradient_accumulation_steps=4)
    >>> optimizer.beta_1, optimizer.beta_2
    (0.9, 0.999)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.1 and table 3, which does not say what
        does not decay: that is big_vision's choice. epsilon is Flax' 1e-8 and not Keras' 1e-7.
    """
    options = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, **options}
    return AdamW(learning_rate, weight_decay=weight_decay, **_per_update(options))


def adamw(learning_rate, weight_decay=0.05, **options):
    """Builds DeiT's optimizer: AdamW, beta 0.9 and 0.999, epsilon 1e-8, weight decay 0.05 on kernels.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`; DeiT's is 5e-4 for 512 images a
            batch, in proportion to the batch.
        weight_decay: Float.
        **options: Keras' others, as in `sgd`.

    Returns:
        An `AdamW`.

    Example:

    >>> optimizer = adamw(1e-3, use_ema=True, ema_momentum=0.99996)

    Reference: [arXiv 2012.12877](https://arxiv.org/abs/2012.12877), table 9.
    """
    return adam(learning_rate, weight_decay, **options)


def sgd(learning_rate, momentum=0.9, global_clipnorm=1.0, **options):
    """Builds the optimizer of the paper's fine-tuning: SGD, momentum 0.9, gradients clipped to norm 1, no decay.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`.
        momentum: Float in [0, 1].
        global_clipnorm: Float, the largest norm of all gradients together; None for no clipping.
        **options: Keras' others. `gradient_accumulation_steps`: updates once in that many batches, by their mean
            gradient; schedules still count batches. `use_ema` and `ema_momentum`: a moving average of the weights,
            which takes their place at the end of `fit`; `keras.callbacks.SwapEMAWeights` validates with it before. Here
            the momentum is one update's, also where Keras, with accumulation, averages after each batch.

    Returns:
        An `SGD`.

    Example:

    >>> optimizer = sgd(0.03, gradient_accumulation_steps=4)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.1 and table 4. The official code keeps
        the momentum in bfloat16; here it has the weights' dtype.
    """
    return SGD(learning_rate, momentum=momentum, global_clipnorm=global_clipnorm, **_per_update(options))


def _per_update(options):
    """The options for Keras, which averages after each batch whether it updated or not."""
    steps = options.get("gradient_accumulation_steps")
    if steps and "ema_momentum" in options:
        options = {**options, "ema_momentum": options["ema_momentum"] ** (1 / steps)}
    return options
