"""Learning-rate schedules as pure functions of the step, and a Keras schedule that wraps them."""

import math

import keras
import numpy as np
from keras import ops

from keras_vit import arguments

# `step` is the number of steps done so far: a number, a NumPy array or a float tensor.


def warmup(step, warmup_steps):
    """Returns the factor of a linear warm-up, from 0 to 1; always 1 without `warmup_steps`."""
    if not warmup_steps:
        return _library(step).ones_like(step)
    return _library(step).minimum(1.0, step / warmup_steps)


def constant(step, peak, total_steps, warmup_steps=0):
    """Warms up, then stays at `peak`."""
    del total_steps
    return peak * warmup(step, warmup_steps)


def linear(step, peak, total_steps, warmup_steps=0, end=1e-5):
    """Warms up to `peak`, then falls linearly to `end` at `total_steps`; `end` defaults to the official code's."""
    lr = end + (peak - end) * (1 - _progress(step, total_steps, warmup_steps))
    return lr * warmup(step, warmup_steps)


def cosine(step, peak, total_steps, warmup_steps=0, end=0.0):
    """Warms up to `peak`, then falls along a half cosine to `end` at `total_steps` (arXiv 1608.03983, no restarts)."""
    wave = _library(step).cos(math.pi * _progress(step, total_steps, warmup_steps))
    return (end + (peak - end) * 0.5 * (1 + wave)) * warmup(step, warmup_steps)


def rsqrt(step, peak, total_steps, warmup_steps=0, timescale=10_000, cooldown_steps=0):
    """Warms up to `peak`, falls by an inverse square root (arXiv 2106.04560, section 3.5), and cools down to 0."""
    lib = _library(step)
    lr = peak / lib.sqrt(1 + lib.maximum(0.0, step - warmup_steps) / timescale) * warmup(step, warmup_steps)
    if cooldown_steps:
        lr = lr * lib.clip((total_steps - step) / cooldown_steps, 0.0, 1.0)
    return lr


DECAYS = {"constant": constant, "linear": linear, "cosine": cosine, "rsqrt": rsqrt}


def _library(step):
    """Returns `keras.ops` for a tensor, NumPy for a number or an array."""
    return ops if ops.is_tensor(step) else np


def _progress(step, total_steps, warmup_steps):
    return _library(step).clip((step - warmup_steps) / (total_steps - warmup_steps), 0.0, 1.0)


@keras.saving.register_keras_serializable(package="keras_vit")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A Keras schedule with a linear warm-up and a decay.

    Args:
        peak: Float above 0, the learning rate at the end of the warm-up.
        total_steps: Int, the steps of the whole training; with gradient accumulation they still count batches.
        warmup_steps: Int, less than `total_steps`; 0 for no warm-up.
        decay: "cosine", "linear", "constant" or "rsqrt".
        **options: The final learning rate `end` for "linear" (1e-5, as in the official code) and "cosine" (0); for
            "rsqrt" `timescale` (10,000 steps) and `cooldown_steps` (0), the length of a final linear decay to 0.

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
            expected = f"Expected no options but {', '.join(allowed) or 'none'} with decay={decay!r}"
            raise ValueError(f"{expected}. Received: {', '.join(unknown)}")
        self.options = {key: arguments.number(key, value) for key, value in options.items()}

    def __call__(self, step):
        step = ops.cast(step, "float32")
        return DECAYS[self.decay](step, self.peak, self.total_steps, self.warmup_steps, **self.options)

    def get_config(self):
        names = ("peak", "total_steps", "warmup_steps", "decay")
        return {**{name: getattr(self, name) for name in names}, **self.options}
