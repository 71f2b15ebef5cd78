"""Knowledge distillation as in DeiT."""

from keras_vit.distillation.distiller import Distiller
from keras_vit.distillation.losses import (
    HardDistillation,
    SoftDistillation,
    hard_distillation,
    soft_distillation,
    weighted_loss,
)
from keras_vit.distillation.teacher import raw_images

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
