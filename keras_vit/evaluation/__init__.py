"""Predicts, measures accuracy, and fits classifiers to frozen features. Invalid arguments raise a ValueError."""

from keras_vit.evaluation.classification import accuracy, imagenet_real_accuracy, top_k_accuracy, vtab_mean
from keras_vit.evaluation.classifiers import few_shot_accuracy, knn_accuracy, linear_probe_accuracy
from keras_vit.evaluation.confusion import classification_report, plot_confusion_matrix, write_confusion_matrix
from keras_vit.evaluation.features import extract_features
from keras_vit.evaluation.prediction import ensemble, predict

__all__ = [
    "accuracy",
    "classification_report",
    "ensemble",
    "extract_features",
    "few_shot_accuracy",
    "imagenet_real_accuracy",
    "knn_accuracy",
    "linear_probe_accuracy",
    "plot_confusion_matrix",
    "predict",
    "top_k_accuracy",
    "vtab_mean",
    "write_confusion_matrix",
]
__dir__ = __all__.copy
