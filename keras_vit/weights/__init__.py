"""Loads and saves pretrained weights."""

from keras_vit.weights.load import load_weights
from keras_vit.weights.report import LoadReport, WeightsMismatchError
from keras_vit.weights.save import save_weights
from keras_vit.weights.zoo import list_weights

__all__ = ["LoadReport", "WeightsMismatchError", "list_weights", "load_weights", "save_weights"]
__dir__ = __all__.copy
