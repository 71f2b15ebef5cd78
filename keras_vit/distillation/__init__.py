"""Knowledge distillation as in DeiT. Invalid arguments and models that do not match raise a ValueError."""

from keras_vit.distillation.distiller import Distiller, raw_images
from keras_vit.distillation.losses import (
    HardDistillation,
    SoftDistillation,
    hard_distillation,
    soft_distillation,
    weighted_loss,
)

__all__ = [
    "Distiller",
    "HardDistillation",
    "SoftDistillation",
    "hard_distillation",
    "raw_images",
    "soft_distillation",
    "weighted_loss",
]
__dir__ = __all__.copy
