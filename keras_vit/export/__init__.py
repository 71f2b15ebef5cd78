"""Exports models to SavedModel, ONNX, OpenVINO, LiteRT and torch.export."""

from keras_vit.export.formats import litert, onnx, openvino, torch_export
from keras_vit.export.parity import ParityError
from keras_vit.export.serving import saved_model
from keras_vit.export.tensorflow_formats import describe
from keras_vit.export.torch_formats import torch_module

__all__ = ["ParityError", "describe", "litert", "onnx", "openvino", "saved_model", "torch_export", "torch_module"]
__dir__ = __all__.copy
