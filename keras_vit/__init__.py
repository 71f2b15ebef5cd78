"""Vision Transformers for Keras 3, on TensorFlow, JAX and PyTorch."""

import os as _os
import sys as _sys

# `sys.argv` may be empty in a program that embeds Python.
if _os.path.basename("".join(_sys.argv[:1])) in ("keras-vit", "keras-vit.exe"):
    from keras_vit.cli import parse as _parse

    # `--help` and misspelled options exit here, because importing Keras and its backend takes seconds.
    _parse()

try:
    # Importing Keras imports its backend, which neither Keras nor this package installs.
    import keras as _keras  # noqa: F401
except (ModuleNotFoundError, ValueError) as _error:
    _message = "set the environment variable KERAS_BACKEND to tensorflow, jax or torch, whichever is installed."
    _backend = str(getattr(_error, "name", "")).partition(".")[0]
    if isinstance(_error, ValueError) and "backend" in str(_error):
        _message = f"Keras has no such backend ({_error}): {_message}"
    elif _backend in ("tensorflow", "jax", "torch"):
        _install = f"pip install {_backend}"
        _message = f"Keras is set to the backend {_backend}, which is not installed: {_install}, or {_message}"
    else:
        raise
    # The command line imports this file before its own error handling starts, so exit with the message.
    if "keras_vit.cli" in _sys.modules:
        _sys.exit(f"keras-vit: {_message}")
    raise ImportError(_message) from _error

from keras_vit import (
    data,
    distillation,
    distribution,
    evaluation,
    export,
    inspection,
    layers,
    models,
    prediction,
    pretraining,
    semi_supervised,
    training,
    weights,
)
from keras_vit.config import Preprocessing, config_of
from keras_vit.models import builders as _builders
from keras_vit.models.bit.config import BiTConfig
from keras_vit.models.bit.model import BiT

# The builders: ViTB16, DeiTB16, DINOv3B16, CLIPB16, SigLIPB16, R50ViTB16, BiTR50x1, CoAtNet0, EfficientNetB0, ...
from keras_vit.models.builders import *  # noqa: F403
from keras_vit.models.coatnet.config import CoAtNetConfig
from keras_vit.models.coatnet.model import CoAtNet
from keras_vit.models.efficientnet.config import EfficientNetConfig
from keras_vit.models.efficientnet.model import EfficientNet
from keras_vit.models.folding import fold_preprocessing
from keras_vit.models.loading import load_weights
from keras_vit.models.pretrained import from_pretrained
from keras_vit.models.profile import paper_table, profile
from keras_vit.models.saving import save_weights
from keras_vit.models.vit.config import ViTConfig
from keras_vit.models.vit.model import ViT
from keras_vit.models.vt_resnet.config import VTResNetConfig
from keras_vit.models.vt_resnet.model import VTResNet
from keras_vit.models.zoo import list_weights
from keras_vit.prediction import decode_predictions, features, predict_images, preprocess_input, read_image
from keras_vit.version import __version__
from keras_vit.weights import LoadReport

__all__ = [
    "BiT",
    "BiTConfig",
    "CoAtNet",
    "CoAtNetConfig",
    "EfficientNet",
    "EfficientNetConfig",
    "LoadReport",
    "Preprocessing",
    "VTResNet",
    "VTResNetConfig",
    "ViT",
    "ViTConfig",
    "__version__",
    "config_of",
    "data",
    "decode_predictions",
    "distillation",
    "distribution",
    "evaluation",
    "export",
    "features",
    "fold_preprocessing",
    "from_pretrained",
    "inspection",
    "layers",
    "list_weights",
    "load_weights",
    "models",
    "paper_table",
    "predict_images",
    "prediction",
    "preprocess_input",
    "pretraining",
    "profile",
    "read_image",
    "save_weights",
    "semi_supervised",
    "training",
    "weights",
]
__all__ += _builders.__all__
# `dir(keras_vit)` and completion in editors list only public names. Each subpackage does the same.
__dir__ = __all__.copy
