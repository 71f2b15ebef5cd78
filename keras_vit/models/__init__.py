"""Builders of whole models, and their classes."""

from keras_vit.models import builders
from keras_vit.models.bit.model import BigTransfer, BiT

# The sizes of all families.
from keras_vit.models.builders import *  # noqa: F403
from keras_vit.models.coatnet.model import CoAtNet, ConvolutionAndAttention
from keras_vit.models.efficientnet.model import EfficientNet, EfficientNetModel
from keras_vit.models.folding import fold_preprocessing
from keras_vit.models.loading import load_weights
from keras_vit.models.pretrained import from_pretrained
from keras_vit.models.saving import save_weights
from keras_vit.models.vit.builder import ViT
from keras_vit.models.vit.model import VisionTransformer
from keras_vit.models.vt_resnet.model import VTResNet, VTResNetModel
from keras_vit.models.zoo import list_weights

__all__ = [
    "BiT",
    "BigTransfer",
    "CoAtNet",
    "ConvolutionAndAttention",
    "EfficientNet",
    "EfficientNetModel",
    "VTResNet",
    "VTResNetModel",
    "ViT",
    "VisionTransformer",
    "fold_preprocessing",
    "from_pretrained",
    "list_weights",
    "load_weights",
    "save_weights",
]
__all__ += builders.__all__
