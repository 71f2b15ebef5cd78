"""Learning rates as pure functions of the step, and the Keras schedule that wraps them."""

import math

import keras
import numpy as np
from keras import ops

from keras_vit import arguments


def warmup(step, warmup_steps):
    """The factor of a linear warm-up: `step / warmup_steps`, and 1 from there on.

    Args:
        step: Int, float, NumPy array, or float tensor: steps done so far, from 0. So in all functions here.
        warmup_steps: Int, the number of steps; 0 for none.

    Returns:
        A NumPy number or array, or a tensor where `step` is one.

    Example:

    >>> float(warmup(500, 10_000))
    0.05
    """
    if not warmup_steps:
        return _library(step).ones_like(step)
    return _library(step).minimum(1.0, step / warmup_steps)


def constant(step, peak, total_steps, warmup_steps=0):
    """Warms up, then stays at `peak`; takes `total_steps` only to be called as the others are.

    Example:

    >>> float(constant(99, 0.5, 100))
    0.5
    """
    del total_steps
    return peak * warmup(step, warmup_steps)


def linear(step, peak, total_steps, warmup_steps=0, end=1e-5):
    """Warms up to `peak`, then falls in a straight line to `end` at `total_steps`.

    Example:

    >>> float(linear(50, 1.0, 100, end=0.0))
    0.5

    Reference: `create_learning_rate_schedule` of the official Flax code, whose `linear_end` is 1e-5 too.
    """
    lr = end + (peak - end) * (1 - _progress(step, total_steps, warmup_steps))
    return lr * warmup(step, warmup_steps)


def cosine(step, peak, total_steps, warmup_steps=0, end=0.0):
    """Warms up to `peak`, then falls in half a cosine to `end` at `total_steps`.

    Example:

    >>> round(float(cosine(50, 1.0, 100)), 6)
    0.5

    Reference: [arXiv 1608.03983](https://arxiv.org/abs/1608.03983), without restarts, as in the official Flax code.
    """
    wave = _library(step).cos(math.pi * _progress(step, total_steps, warmup_steps))
    return (end + (peak - end) * 0.5 * (1 + wave)) * warmup(step, warmup_steps)


def rsqrt(step, peak, total_steps, warmup_steps=0, timescale=10_000, cooldown_steps=0):
    """Warms up to `peak`, then falls as `1 / sqrt(1 + steps since / timescale)`, at the end in a straight line to 0.

    Args:
        step: The step, as in `warmup`.
        peak: Float, the highest learning rate.
        total_steps: Int, the step at which the cool-down reaches 0.
        warmup_steps: Int, the steps of the warm-up.
        timescale: Number, in steps.
        cooldown_steps: Int, the steps of the straight line at the end; 0 for none.

    Returns:
        As `warmup`.

    Example:

    >>> float(rsqrt(30_000, 1.0, 100_000))
    0.5

    Reference: [arXiv 2106.04560](https://arxiv.org/abs/2106.04560), section 3.5, and big_vision.
    """
    lib = _library(step)
    lr = peak / lib.sqrt(1 + lib.maximum(0.0, step - warmup_steps) / timescale) * warmup(step, warmup_steps)
    if cooldown_steps:
        lr = lr * lib.clip((total_steps - step) / cooldown_steps, 0.0, 1.0)
    return lr


DECAYS = {"constant": constant, "linear": linear, "cosine": cosine, "rsqrt": rsqrt}


def _library(step):
    """Where to look for functions of `step`: Keras for a tensor, NumPy for a number or an array."""
    return ops if ops.is_tensor(step) else np


def _progress(step, total_steps, warmup_steps):
    return _library(step).clip((step - warmup_steps) / (total_steps - warmup_steps), 0.0, 1.0)


@keras.saving.register_keras_serializable(package="keras_vit")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up and a decay, as a Keras schedule.

    Args:
        peak: Float, the learning rate at the warm-up's end.
        total_steps: Int, the steps of the whole training. Steps are batches: with gradient accumulation too, since
            Keras asks schedules by the batch.
        warmup_steps: Int, less than `total_steps`; 0 for no warm-up.
        decay: "cosine", "linear", "constant" or "rsqrt".
        **options: The decay's own: `end` of "linear" (1e-5, as in the official code) and "cosine" (0), `timescale` and
            `cooldown_steps` of "rsqrt".

    Call arguments:
        step: Int or integer tensor, the steps done so far.

    Returns:
        The learning rate, a float32 scalar tensor.

    Raises:
        ValueError: If an argument is out of its range, or the decay has no such option.

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
        self.decay = arguments.one_of("decay", decay, tuple(DECAYS))
        if self.warmup_steps >= self.total_steps:
            raise ValueError(
                "Invalid value received for argument `warmup_steps`. Expected less than total_steps="
                f"{self.total_steps}. Received: {warmup_steps!r}"
            )
        allowed = {"linear": ("end",), "cosine": ("end",), "rsqrt": ("timescale", "cooldown_steps")}.get(decay, ())
        if unknown := sorted(set(options) - set(allowed)):
            raise ValueError(
                f"Expected no options but {', '.join(allowed) or 'none'} with decay={decay!r}. "
                f"Received: {', '.join(unknown)}"
            )
        self.options = {key: arguments.number(key, value) for key, value in options.items()}

    def __call__(self, step):
        return DECAYS[self.decay](
            ops.cast(step, "float32"), self.peak, self.total_steps, self.warmup_steps, **self.options
        )

    def get_config(self):
        return {
            "peak": self.peak,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "decay": self.decay,
            **self.options,
        }
