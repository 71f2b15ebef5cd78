"""Vision Transformers for Keras 3, on TensorFlow, JAX and PyTorch."""

from keras_vit import inspection, layers, models, weights
from keras_vit.models import (
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
    decode_predictions,
    features,
    preprocess_input,
)
from keras_vit.version import __version__
from keras_vit.weights import LoadReport, load_weights, save_weights

__all__ = [
    "LoadReport",
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
    "__version__",
    "decode_predictions",
    "features",
    "inspection",
    "layers",
    "load_weights",
    "models",
    "preprocess_input",
    "save_weights",
    "weights",
]
