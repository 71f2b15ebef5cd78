"""Builders of whole models, and what goes into them and comes out."""

from keras_vit.models import builders
from keras_vit.models.bit import BigTransfer, BiT

# A builder a row of that file: DeiT, DINOv2, SigLIP, the hybrids and the sizes of ViT and BiT.
from keras_vit.models.builders import *  # noqa: F403
from keras_vit.models.features import features
from keras_vit.models.folding import fold_preprocessing
from keras_vit.models.predictions import decode_predictions
from keras_vit.models.preprocessing import preprocess_input
from keras_vit.models.pretrained import from_pretrained
from keras_vit.models.vision_transformer import VisionTransformer
from keras_vit.models.vit import ViT

__all__ = [
    "BiT",
    "BigTransfer",
    "ViT",
    "VisionTransformer",
    "decode_predictions",
    "features",
    "fold_preprocessing",
    "from_pretrained",
    "preprocess_input",
]
__all__ += builders.__all__
