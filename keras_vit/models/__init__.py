"""Builders of whole models, and what goes into them and comes out."""

from keras_vit.models.features import features
from keras_vit.models.predictions import decode_predictions
from keras_vit.models.preprocessing import preprocess_input
from keras_vit.models.vit import (
    ViT,
    ViTB8,
    ViTB16,
    ViTB32,
    ViTG14,
    ViTg14,
    ViTH14,
    ViTL16,
    ViTL32,
    ViTS16,
    ViTS32,
    ViTTi16,
)

__all__ = [
    "ViT",
    "ViTB8",
    "ViTB16",
    "ViTB32",
    "ViTG14",
    "ViTH14",
    "ViTL16",
    "ViTL32",
    "ViTS16",
    "ViTS32",
    "ViTTi16",
    "ViTg14",
    "decode_predictions",
    "features",
    "preprocess_input",
]
