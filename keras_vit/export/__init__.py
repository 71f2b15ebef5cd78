"""Writing models in the formats that servers and devices read."""

from keras_vit.export.describe import describe
from keras_vit.export.litert import litert
from keras_vit.export.onnx import onnx
from keras_vit.export.openvino import openvino
from keras_vit.export.parity import ExportReport, ParityError
from keras_vit.export.saved_model import saved_model
from keras_vit.export.torch_export import torch_export

__all__ = [
    "ExportReport",
    "ParityError",
    "describe",
    "litert",
    "onnx",
    "openvino",
    "saved_model",
    "torch_export",
]
