"""The functions that build models, and `FamilyModel`, the class of these models."""

from keras_vit.models import builders
from keras_vit.models.bit.model import BiT
from keras_vit.models.builders import *  # noqa: F403
from keras_vit.models.coatnet.model import CoAtNet
from keras_vit.models.efficientnet.model import EfficientNet
from keras_vit.models.family import FamilyModel
from keras_vit.models.folding import fold_preprocessing
from keras_vit.models.loading import load_weights
from keras_vit.models.pretrained import from_pretrained
from keras_vit.models.saving import save_weights
from keras_vit.models.vit.model import ViT
from keras_vit.models.vt_resnet.model import VTResNet
from keras_vit.models.zoo import list_weights

__all__ = [
    "BiT",
    "CoAtNet",
    "EfficientNet",
    "FamilyModel",
    "VTResNet",
    "ViT",
    "fold_preprocessing",
    "from_pretrained",
    "list_weights",
    "load_weights",
    "save_weights",
]
__all__ += builders.__all__
__dir__ = __all__.copy
