import os

import keras
import numpy as np

from keras_vit.export import parity
from keras_vit.export import precision as precisions


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
) -> parity.ExportReport:
    """Writes a model as an ONNX file.

    All backends go one way: PyTorch's exporter, in a process of its own unless the model is on PyTorch's CPU already.
    (TensorFlow's exact GELU becomes an operation that onnxruntime has not, and JAX has no exporter of its own.) The
    file takes `images` as the model does, of any number, and in a model of any size of any size; it answers `outputs`,
    or several outputs by the model's names. It is run in onnxruntime, beside the model, before it is put in its place.

    Args:
        model: A `keras.Model` of one input.
        path: Path of the file, ending in ".onnx". A model above 2 GB gets a second file beside it.
        precision: "float32", "float16", "bfloat16" or "int8", as `precision.with_precision` rounds: the weights are
            stored so, and computed with as the model does.
        images: Images as the model takes them, (batch, height, width, channels), to measure the change of the answers
            on; None for none.
        labels: Ints, (batch,), the classes of `images`, to measure the accuracy too; None for none.
        tolerance: Float, the largest difference allowed from the model of the same precision, in parts of the largest
            output or of 1, whichever is more. None takes 1e-4, and 5e-2 for a model that computes in bfloat16, 1e-2 in
            float16 or on a GPU.
        overwrite: Bool, whether to replace what is at `path`.
        custom_module: Name of a module, or path of a Python file, that defines the model's own layers, where the other
            process cannot find them.

    Returns:
        A `parity.ExportReport`; printed, it says the size, the difference and the change.

    Raises:
        ImportError: If torch, onnx, onnxscript or onnxruntime is not installed.
        FileExistsError: If there is something at `path` and `overwrite` is False.
        ValueError: If an argument is out of its range, or the model has not one input.
        ParityError: If the file answers otherwise than the model; it is not written.
        RuntimeError: If the model cannot be exported.

    Example:

    >>> keras_vit.export.onnx(model, "vit.onnx")  # doctest: +SKIP
    ExportReport(path=PosixPath('vit.onnx'), precision='float32', ...)
    """
    parity.require(("torch", "torch"), ("onnx", "onnx"), ("onnxscript", "onnxscript"), ("onnxruntime", "onnxruntime"))
    return parity.write_checked(
        model,
        path,
        write_file,
        run,
        backend="torch",
        suffix=".onnx",
        precision=precision,
        images=images,
        labels=labels,
        tolerance=tolerance,
        overwrite=overwrite,
        custom_module=custom_module,
    )


def write_file(model, path, precision):
    """Writes an ONNX file on the PyTorch backend; weights that a precision holds exactly are stored in it."""
    import torch

    from keras_vit.export.torch_export import traced

    program = torch.onnx.export(
        traced(model),
        dynamo=True,
        input_names=["images"],
        output_names=parity.output_names(model),
        verbose=False,
    )
    if precision in ("float16", "bfloat16"):
        _shrink(program.model, precision)
    program.save(os.fspath(path))


def _shrink(model, precision):
    """Stores the constants of an ONNX model in a precision, where that loses nothing, and casts them back."""
    import ml_dtypes
    import onnx_ir as ir

    kinds = {"float16": (np.float16, ir.DataType.FLOAT16), "bfloat16": (ml_dtypes.bfloat16, ir.DataType.BFLOAT16)}
    graph = model.graph
    for name, value in list(graph.initializers.items()):
        small = precisions.stored(value.const_value.numpy(), precision)
        if small is None:
            continue
        tensor = ir.tensor(small, dtype=kinds[precision][1], name=f"{name}.{precision}")
        weight = ir.Value(name=tensor.name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        cast = ir.node("Cast", [weight], {"to": ir.DataType.FLOAT}, name=f"{name}.cast")
        cast.outputs[0].name = f"{name}.float32"
        cast.outputs[0].shape, cast.outputs[0].type = value.shape, value.type
        value.replace_all_uses_with(cast.outputs[0])
        del graph.initializers[name]
        graph.register_initializer(weight)
        graph.insert_before(graph[0], cast)


def run(path, batches, names):
    """Answers batches of images with an ONNX file in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Errors alone: it warns of each constant it folds.
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    return [[np.asarray(y, "float32") for y in session.run(names, {"images": batch})] for batch in batches]
