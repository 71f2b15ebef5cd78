"""Exports to ONNX, OpenVINO, LiteRT and torch.export."""

import os
from typing import TypedDict, Unpack

import keras
import numpy as np

from keras_vit.export import saved_files, tensorflow_formats, torch_formats
from keras_vit.export.checked import Format, write_file
from keras_vit.export.precision import PRECISIONS, STATIC

_ONNX = ("torch", "onnx", "onnxscript", "onnxruntime")
FORMATS = {
    # onnxruntime lacks the operation of TensorFlow's exact GELU, and JAX has no ONNX exporter.
    "onnx": Format("onnx", ".onnx", "torch", _ONNX, torch_formats),
    # The tolerance of int8_static is relative to the float32 model's logits, whose order matters.
    "openvino": Format(
        *("openvino", ".xml", "tensorflow", ("tensorflow", "openvino"), tensorflow_formats),
        precisions=(*PRECISIONS, STATIC),
        tolerances={STATIC: 0.5},
    ),
    # The converter adds up some weights, such as positions and a bias, and rounds the sums again.
    "litert": Format(
        *("litert", ".tflite", "tensorflow", ("tensorflow", "ai_edge_litert"), tensorflow_formats),
        precisions=("float32", "float16", "int8"),
        tolerances={"float16": 5e-3},
    ),
    "torch_export": Format("torch_export", ".pt2", "torch", ("torch",), torch_formats),
    "saved_model": Format("saved_model", "", "tensorflow", ("tensorflow",), saved_files),
}


class Options(TypedDict, total=False):
    """Options of all formats, documented in `onnx`."""

    precision: str
    images: np.ndarray | None
    labels: np.ndarray | None
    tolerance: float | None
    overwrite: bool
    custom_module: str | os.PathLike | None


def onnx(model: keras.Model, path: str | os.PathLike, **options: Unpack[Options]) -> dict:
    """Exports a model to ONNX, compares the outputs in onnxruntime with the model, and returns a report.

    The input is named `images`. It has any batch size, and any image size if the model allows it. A single output is
    named `outputs`; several outputs keep the model's names. All formats work in this way.

    PyTorch writes ONNX and torch.export, and TensorFlow writes OpenVINO and LiteRT. If the model uses another backend,
    or PyTorch on a GPU, the export runs in a new process.

    Args:
        model: A `keras.Model` with one input.
        path: Path of the file, ending in ".onnx". If the model is above 2 GB, a second file is written next to it.
        precision: "float32" (default), "float16", "bfloat16" or "int8", the precision of the stored weights.
            Computations keep the model's precision. "int8" quantizes dense kernels, with one scale per column.
        images: Images as the model takes them, (batch, height, width, channels), or None (default). The report contains
            how their outputs differ from the original model's.
        labels: The classes of `images`, ints (batch,), to also report the accuracy, or None (default).
        tolerance: Float, the largest allowed difference from the model of the same precision, relative to max(1,
            largest output). None (default) means 1e-4, or 5e-2 if the model computes in bfloat16, or 1e-2 in float16 or
            on a GPU.
        overwrite: Bool, whether to replace an existing file; default False.
        custom_module: Module name or .py path that defines the model's custom layers. It is only needed if the export
            runs in a new process and the layers are defined in the running script or notebook.

    Returns:
        A dict: `path`, `precision`, `size` (bytes), `difference` (the largest from the model of the same precision),
        `num_checked` (images), and `change`: None without `images`, else a dict of `num_images`, `largest`, `mean`,
        `same_top1` and, with labels, the accuracies `before` and `after`.

    Raises:
        ImportError: If a package that the format needs is not installed.
        FileExistsError: If `path` exists and `overwrite` is False.
        ValueError: If an argument is invalid, the model does not have one input, or its layers cannot be imported.
        ParityError: If weights are NaN or the outputs of the file differ from the model's. Nothing is written.
        RuntimeError: If the export process fails.

    Example:

    >>> keras_vit.export.onnx(model, "vit.onnx")["difference"]  # doctest: +SKIP
    2.4e-06
    """
    return write_file(FORMATS["onnx"], model, path, **options)


def openvino(model: keras.Model, path: str | os.PathLike, **options: Unpack[Options]) -> dict:
    """Exports a model to OpenVINO's .xml and .bin files.

    Arguments and errors are as in `export.onnx`, but `path` ends in ".xml". OpenVINO chooses the compute precision for
    the processor; set `INFERENCE_PRECISION_HINT` to override it.

    `precision="int8_static"` also computes matrix products in int8, with NNCF (`pip install nncf`). Dense layers whose
    input has outliers, as in some MLPs of trained ViTs, stay in float. The ranges of the activations are measured on
    `images`: pass a hundred or more typical images. The default tolerance is 0.5. The report's `change` contains the
    number of these images that keep their top-1 class; also measure it on other images. This precision is meant for
    processors with VNNI or AMX, which multiply in int8.
    """
    return write_file(FORMATS["openvino"], model, path, **options)


def litert(model: keras.Model, path: str | os.PathLike, **options: Unpack[Options]) -> dict:
    """Exports a model to LiteRT (TensorFlow Lite) with the signature `serving_default`.

    Arguments and errors are as in `export.onnx`, but `path` ends in ".tflite", "bfloat16" is not supported, and the
    default tolerance for "float16" is 5e-3. Set the input size with `resize_tensor_input`.
    """
    return write_file(FORMATS["litert"], model, path, **options)


def torch_export(model: keras.Model, path: str | os.PathLike, **options: Unpack[Options]) -> dict:
    """Exports a model to a PyTorch program, which maps images to a tuple of outputs.

    Arguments and errors are as in `export.onnx`, but `path` ends in ".pt2". `torch.export.load` needs no Keras.
    """
    return write_file(FORMATS["torch_export"], model, path, **options)
