"""Pre-trains a ViT by masked image modelling. Invalid arguments and unsupported backbones raise a ValueError."""

from keras_vit.pretraining.mae import MAE
from keras_vit.pretraining.masked_image_model import Reconstruction
from keras_vit.pretraining.masked_patch import MaskedPatchPrediction
from keras_vit.pretraining.reconstructions import TensorBoardReconstructions, plot_reconstructions
from keras_vit.pretraining.simmim import SimMIM

__all__ = [
    "MAE",
    "MaskedPatchPrediction",
    "Reconstruction",
    "SimMIM",
    "TensorBoardReconstructions",
    "plot_reconstructions",
]
__dir__ = __all__.copy
