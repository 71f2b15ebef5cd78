"""The table of formats with a runtime of their own, and a function for each."""

import os

import keras
import numpy as np

from keras_vit.export import tensorflow_formats, torch_formats
from keras_vit.export.checked import Format, write_checked
from keras_vit.export.parity import ExportReport

FORMATS = {
    "onnx": Format(
        suffix=".onnx",
        # TensorFlow's exact GELU becomes an operation that onnxruntime lacks, and JAX has no exporter.
        backend="torch",
        packages=("torch", "onnx", "onnxscript", "onnxruntime"),
        write=torch_formats.write_onnx,
        run=torch_formats.run_onnx,
    ),
    "openvino": Format(
        suffix=".xml",
        backend="tensorflow",
        packages=("tensorflow", "openvino"),
        write=tensorflow_formats.write_openvino,
        run=tensorflow_formats.run_openvino,
    ),
    "litert": Format(
        suffix=".tflite",
        backend="tensorflow",
        packages=("tensorflow", "ai_edge_litert"),
        write=tensorflow_formats.write_litert,
        run=tensorflow_formats.run_litert,
        precisions=("float32", "float16", "int8"),
        # The converter adds up some weights, such as positions and a bias, and rounds their sums too.
        tolerances={"float16": 5e-3},
    ),
    "torch_export": Format(
        suffix=".pt2",
        backend="torch",
        packages=("torch",),
        write=torch_formats.write_torch_export,
        run=torch_formats.run_torch_export,
    ),
}


def onnx(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    precision: str = "float32",
    images: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    tolerance: float | None = None,
    overwrite: bool = False,
    custom_module: str | os.PathLike | None = None,
) -> ExportReport:
    """Writes a model as an ONNX file.

    All formats take these arguments and work in the same way. The file takes `images`, the model's input, in batches of
    any size, and images of any size if the model does. It gives `outputs`, or several outputs by the model's names. It
    is run in the format's own runtime and compared with the model before it is put in its place.

    ONNX and torch.export are written by PyTorch, OpenVINO and LiteRT by TensorFlow. If the model is on another backend,
    or for PyTorch on a GPU, that happens in a new process.

    Args:
        model: A `keras.Model` of one input.
        path: Path of the file, ending in ".onnx". A model above 2 GB gets a second file beside it.
        precision: "float32", "float16", "bfloat16" or "int8", in which the weights are stored; the computations keep
            the model's. "int8" quantizes the kernels of dense layers, one scale per column.
        images: Images as the model takes them, (batch, height, width, channels), on which to measure the change of the
            outputs from the original model; None for none.
        labels: Ints, (batch,), the classes of `images`, to measure the accuracy too; None for none.
        tolerance: Float, the largest difference allowed from the model of the same precision, relative to the largest
            output or to 1, whichever is more. None takes 1e-4, and 5e-2 for a model that computes in bfloat16, 1e-2 in
            float16 or on a GPU.
        overwrite: Bool, whether to replace an existing file.
        custom_module: Name of a module, or path of a Python file, that defines the model's own layers. A new process
            needs it for layers that the running script or notebook defines, and finds those of imported modules itself.

    Returns:
        An `ExportReport`, which prints the size, the difference and the change.

    Raises:
        ImportError: If a package that the format needs is not installed.
        FileExistsError: If `path` exists and `overwrite` is False.
        ValueError: If an argument is out of its range, the model does not have one input, or a new process cannot
            import its layers.
        ParityError: If the file gives different outputs from the model; it is not written.
        RuntimeError: If the model cannot be exported.

    Example:

    >>> keras_vit.export.onnx(model, "vit.onnx")  # doctest: +SKIP
    ExportReport(path=PosixPath('vit.onnx'), precision='float32', ...)
    """
    fmt = FORMATS["onnx"]
    return write_checked(fmt, model, path, precision, images, labels, tolerance, overwrite, custom_module)


def openvino(model: keras.Model, path: str | os.PathLike, **options) -> ExportReport:
    """Writes a model as OpenVINO's two files, .xml and .bin.

    OpenVINO chooses the precision of the computations by the processor; `INFERENCE_PRECISION_HINT` sets it.

    Arguments, returned report and errors: as in `export.onnx`, but `path` ends in ".xml"; the other file gets the same
    name with ".bin".

    Example:

    >>> keras_vit.export.openvino(model, "vit.xml")  # doctest: +SKIP
    ExportReport(path=PosixPath('vit.xml'), precision='float32', ...)
    """
    return write_checked(FORMATS["openvino"], model, path, **options)


def litert(model: keras.Model, path: str | os.PathLike, **options) -> ExportReport:
    """Writes a model as a LiteRT (TensorFlow Lite) file with the signature `serving_default`.

    `resize_tensor_input` sets the batch size, and the image size in a model of any size.

    Arguments, returned report and errors: as in `export.onnx`, but `path` ends in ".tflite", `precision` may not be
    "bfloat16", and `tolerance` is 5e-3 by default with float16.

    Example:

    >>> keras_vit.export.litert(model, "vit.tflite")  # doctest: +SKIP
    ExportReport(path=PosixPath('vit.tflite'), precision='float32', ...)
    """
    return write_checked(FORMATS["litert"], model, path, **options)


def torch_export(model: keras.Model, path: str | os.PathLike, **options) -> ExportReport:
    """Writes a model as an exported program of PyTorch, which `torch.export.load` reads without Keras.

    The program takes the images as its only argument and returns a tuple of the outputs.

    Arguments, returned report and errors: as in `export.onnx`, but `path` ends in ".pt2".

    Example:

    >>> keras_vit.export.torch_export(model, "vit.pt2")  # doctest: +SKIP
    ExportReport(path=PosixPath('vit.pt2'), precision='float32', ...)

    Reference: [torch.export](https://docs.pytorch.org/docs/stable/export.html).
    """
    return write_checked(FORMATS["torch_export"], model, path, **options)
