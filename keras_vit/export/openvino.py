import os
import tempfile

import keras
import numpy as np

from keras_vit.export import parity
from keras_vit.export import precision as precisions


def openvino(
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
    """Writes a model as OpenVINO's two files, .xml and .bin.

    All backends go one way: a plain SavedModel that OpenVINO's converter reads, made on TensorFlow, in a process of its
    own where the model is not there already. The files take `images` as the model does, of any number, and in a model
    of any size of any size; they answer `outputs`, or several outputs by the model's names. They are run in OpenVINO in
    float32, beside the model, before they are put in their place.

    Args:
        model: A `keras.Model` of one input.
        path: Path of the first file, ending in ".xml"; the other gets the same name with ".bin".
        precision: "float32", "float16", "bfloat16" or "int8", as `precision.with_precision` rounds: the weights are
            stored so. What they are computed with is OpenVINO's choice, by the processor, unless it is told
            `INFERENCE_PRECISION_HINT`.
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
        ImportError: If TensorFlow or OpenVINO is not installed.
        FileExistsError: If there is something at `path` and `overwrite` is False.
        ValueError: If an argument is out of its range, or the model has not one input.
        ParityError: If the files answer otherwise than the model; they are not written.
        RuntimeError: If the model cannot be exported.

    Example:

    >>> keras_vit.export.openvino(model, "vit.xml")  # doctest: +SKIP
    ExportReport(path=PosixPath('vit.xml'), precision='float32', ...)
    """
    parity.require(("tensorflow", "tensorflow"), ("openvino", "openvino"))
    return parity.write_checked(
        model,
        path,
        write_files,
        run,
        backend="tensorflow",
        suffix=".xml",
        precision=precision,
        images=images,
        labels=labels,
        tolerance=tolerance,
        overwrite=overwrite,
        custom_module=custom_module,
    )


def write_files(model, path, precision):
    """Writes OpenVINO's files on the TensorFlow backend; weights that a precision holds exactly are stored in it."""
    import openvino

    from keras_vit.export.litert import save_plain

    with tempfile.TemporaryDirectory(prefix="keras_vit_") as folder:
        save_plain(model, folder)
        converted = openvino.convert_model(folder)
        if precision != "float32":
            _shrink(converted, precision)
        openvino.save_model(converted, os.fspath(path), compress_to_fp16=False)


def _shrink(converted, precision):
    """Stores the constants of an OpenVINO model in a precision, where that loses nothing, and converts them back.

    OpenVINO's own compression would round the others too, among them epsilons that float16 cannot hold.
    """
    import openvino
    from openvino import opset13

    kinds = {"float16": openvino.Type.f16, "bfloat16": openvino.Type.bf16, "int8": openvino.Type.i8}
    for constant in converted.get_ops():
        if constant.get_type_name() != "Constant" or constant.get_element_type() != openvino.Type.f32:
            continue
        if precisions.stored(constant.data, precision) is None:
            continue
        small = opset13.constant(np.array(constant.data), kinds[precision])
        restored = opset13.convert(small, "f32")
        for target in constant.output(0).get_target_inputs():
            target.replace_source_output(restored.output(0))


def run(path, batches, names):
    """Answers batches of images with OpenVINO's files on the CPU, in float32."""
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(os.fspath(path), "CPU", settings)
    received = []
    for batch in batches:
        answer = compiled(batch)
        received.append([np.array(answer[name], "float32") for name in names])
    return received
