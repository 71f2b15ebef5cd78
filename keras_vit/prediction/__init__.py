"""Predicts the classes of arrays and image files, and computes the features of inner blocks."""

from keras_vit.prediction.classes import decode_predictions
from keras_vit.prediction.classify import read_image
from keras_vit.prediction.features import features
from keras_vit.prediction.files import predict_images
from keras_vit.prediction.preprocessing import preprocess_input

__all__ = ["decode_predictions", "features", "predict_images", "preprocess_input", "read_image"]
__dir__ = __all__.copy
