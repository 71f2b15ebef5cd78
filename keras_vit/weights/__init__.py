"""Reads and writes files of weights."""

from keras_vit.weights.report import LoadReport, WeightsMismatchError

__all__ = ["LoadReport", "WeightsMismatchError"]
__dir__ = __all__.copy
