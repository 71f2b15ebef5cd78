"""Vision Transformers for Keras 3, on TensorFlow, JAX and PyTorch."""

import sys as _sys

try:
    # It imports its backend, which comes with neither Keras nor this package.
    import keras as _keras  # noqa: F401
except ModuleNotFoundError as _error:
    _backend = str(_error.name).partition(".")[0]
    if _backend not in ("tensorflow", "jax", "torch"):
        raise
    _message = (
        f'Keras is set to the backend {_backend}, which is not installed: pip install "keras-vit[{_backend}]", or set '
        "the environment variable KERAS_BACKEND to tensorflow, jax or torch, whichever is."
    )
    # The command imports this file before anything of its own could catch the error.
    if _sys.argv[0].endswith(("keras-vit", "keras-vit.exe")):
        _sys.exit(f"keras-vit: {_message}")
    raise ImportError(_message) from _error

# Packed, so that all the names fit on a page.
# fmt: off
# isort: off
from keras_vit import (
    data, distillation, evaluation, export, inspection, layers, models, pretraining, training, weights,
)
from keras_vit.models import (
    BiT, BiTR101x1, BiTR101x3, BiTR152x1, BiTR152x2, BiTR152x4, BiTR200x3, BiTR50x1, BiTR50x2, BiTR50x3, DINOv2B14,
    DINOv2L14, DINOv2S14, DeiT3B16, DeiT3L16, DeiT3S16, DeiTB16, DeiTB16Distilled, DeiTS16, DeiTS16Distilled,
    DeiTTi16, DeiTTi16Distilled, R26ViTB32, R26ViTS32, R50ViTB16, R50ViTB32, R50ViTL32, RViTTi16, SigLIPB16,
    SigLIPL16, SigLIPSO400M14, ViT, ViTB16, ViTB32, ViTB8, ViTG14, ViTH14, ViTL16, ViTL32, ViTS16, ViTS32,
    ViTSO400M14, ViTTi16, ViTg14, decode_predictions, features, fold_preprocessing, from_pretrained, preprocess_input,
)
# isort: on
# fmt: on
from keras_vit.preprocessing import Preprocessing
from keras_vit.profile import paper_table, profile
from keras_vit.version import __version__
from keras_vit.weights import LoadReport, list_weights, load_weights, save_weights

# fmt: off
__all__ = [
    "BiT", "BiTR50x1", "BiTR50x2", "BiTR50x3", "BiTR101x1", "BiTR101x3", "BiTR152x1", "BiTR152x2", "BiTR152x4",
    "BiTR200x3", "DINOv2B14", "DINOv2L14", "DINOv2S14", "DeiT3B16", "DeiT3L16", "DeiT3S16", "DeiTB16",
    "DeiTB16Distilled", "DeiTS16", "DeiTS16Distilled", "DeiTTi16", "DeiTTi16Distilled", "LoadReport", "Preprocessing",
    "R26ViTB32", "R26ViTS32", "R50ViTB16", "R50ViTB32", "R50ViTL32", "RViTTi16", "SigLIPB16", "SigLIPL16",
    "SigLIPSO400M14", "ViT", "ViTB8", "ViTB16", "ViTB32", "ViTG14", "ViTH14", "ViTL16", "ViTL32", "ViTS16", "ViTS32",
    "ViTSO400M14", "ViTTi16", "ViTg14", "__version__", "data", "decode_predictions", "distillation", "evaluation",
    "export",
    "features", "fold_preprocessing", "from_pretrained", "inspection", "layers", "list_weights", "load_weights",
    "models", "paper_table", "preprocess_input", "pretraining", "profile", "save_weights", "training", "weights",
]
# fmt: on
