"""The one way by which pretrained weights enter and leave a model."""

from keras_vit.weights.load import load_weights
from keras_vit.weights.report import LoadReport, WeightsMismatchError
from keras_vit.weights.save import save_weights

__all__ = ["LoadReport", "WeightsMismatchError", "load_weights", "save_weights"]
