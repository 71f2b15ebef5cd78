"""Builders, preprocessing and predictions of whole models."""

from keras_vit.models import builders
from keras_vit.models.bit import BigTransfer, BiT

# The sizes of all families.
from keras_vit.models.builders import *  # noqa: F403
from keras_vit.models.classify import read_image
from keras_vit.models.coatnet import CoAtNet, ConvolutionAndAttention
from keras_vit.models.efficientnet import EfficientNet, EfficientNetModel
from keras_vit.models.features import features
from keras_vit.models.folding import fold_preprocessing
from keras_vit.models.predictions import decode_predictions
from keras_vit.models.preprocessing import preprocess_input
from keras_vit.models.pretrained import from_pretrained
from keras_vit.models.vision_transformer import VisionTransformer
from keras_vit.models.vit import ViT
from keras_vit.models.vt_resnet import VTResNet, VTResNetModel

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
    "decode_predictions",
    "features",
    "fold_preprocessing",
    "from_pretrained",
    "preprocess_input",
    "read_image",
]
__all__ += builders.__all__
