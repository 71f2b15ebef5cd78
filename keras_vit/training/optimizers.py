"""Keras optimizers configured as in the papers."""

import keras
from keras import ops


def is_decayed(path: str) -> bool:
    """Returns True if weight decay applies to the variable of this path: to kernels (also LoRA's), as in big_vision."""
    return "kernel" in path.rsplit("/", 1)[-1]


def _class_of_backend(optimizer_class):
    """Returns the class that Keras instantiates: on PyTorch a subclass with fused updates, which ours must extend."""
    return type(optimizer_class.__new__(optimizer_class))


class _Averaged:
    """Averages the weights once per update, and gives the model copies of the averages at the end of `fit`."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        if self.use_ema and self.gradient_accumulation_steps:
            # Keras averages after each batch, also between updates.
            self.ema_momentum **= 1 / self.gradient_accumulation_steps

    @classmethod
    def from_config(cls, config, custom_objects=None):
        optimizer = super().from_config(dict(config), custom_objects)
        # The config already contains the momentum per batch.
        optimizer.ema_momentum = config.get("ema_momentum", optimizer.ema_momentum)
        return optimizer

    def finalize_variable_values(self, var_list):
        super().finalize_variable_values(var_list)
        if self.use_ema:
            # On JAX, the averages share arrays with the model, and training donates these arrays.
            for variable in var_list:
                variable.assign(ops.copy(variable))


@keras.saving.register_keras_serializable(package="keras_vit")
class AdamW(_Averaged, _class_of_backend(keras.optimizers.AdamW)):
    """`keras.optimizers.AdamW` with weight decay on kernels only; its defaults are DeiT's.

    With weight decay 0.1 (ImageNet-21k, JFT) or 0.3 (ImageNet-1k) it is the Adam of the ViT paper's pre-training, whose
    code decouples the decay too: `w -= lr * (adam(gradient) + weight_decay * w)`. Keras' own AdamW forgets
    `exclude_from_weight_decay` when a saved model is loaded. This class decides from the variables' paths in each
    `build`, and ignores earlier exclusions.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`; DeiT's is 5e-4 per 512 images of a
            batch.
        weight_decay: Float of at least 0.
        beta_1, beta_2: Floats in [0, 1), the decay rates of the two moments.
        epsilon: Float above 0; the default is Flax' 1e-8, not Keras' 1e-7.
        **options: Other options of the Keras optimizer, as in `SGD`.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> model.compile(AdamW(1e-3, use_ema=True, ema_momentum=0.99996), "mse")

    Reference: [arXiv 1711.05101](https://arxiv.org/abs/1711.05101); [arXiv
    2012.12877](https://arxiv.org/abs/2012.12877), table 9; [arXiv 2010.11929](https://arxiv.org/abs/2010.11929),
    section 4.1 and table 3. Decay only on kernels is big_vision's choice.
    """

    def __init__(self, learning_rate=0.001, weight_decay=0.05, beta_1=0.9, beta_2=0.999, epsilon=1e-8, **options):
        super().__init__(learning_rate, weight_decay, beta_1, beta_2, epsilon, **options)

    def build(self, variables):
        kept = [v for v in variables if not is_decayed(v.path)]
        if len(kept) < len(variables):
            self.exclude_from_weight_decay(var_list=kept)
        else:
            # No kernel is trained. On PyTorch, Keras cannot decay an empty list.
            self.weight_decay = 0.0
        super().build(variables)


@keras.saving.register_keras_serializable(package="keras_vit")
class SGD(_Averaged, _class_of_backend(keras.optimizers.SGD)):
    """`keras.optimizers.SGD` with the defaults of the ViT paper's fine-tuning.

    Args:
        learning_rate: Float or `keras.optimizers.schedules.LearningRateSchedule`.
        momentum: Float in [0, 1].
        global_clipnorm: Float above 0, the largest global norm of the gradients; None for no clipping.
        **options: Other options of the Keras optimizer. With `gradient_accumulation_steps`, each update uses the mean
            gradient of that many batches; schedules still count batches. With `use_ema`, a moving average of the
            weights replaces them at the end of `fit`; `ema_momentum` is per update. `keras.callbacks.SwapEMAWeights`
            validates with the average.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1)
    >>> model.compile(SGD(0.03, gradient_accumulation_steps=4), "mse")

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.1 and table 4. The official code keeps
    the momentum in bfloat16; here it has the weights' dtype.
    """

    def __init__(self, learning_rate=0.01, momentum=0.9, *, global_clipnorm=1.0, **options):
        super().__init__(learning_rate, momentum, global_clipnorm=global_clipnorm, **options)
