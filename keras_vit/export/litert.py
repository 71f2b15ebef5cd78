import os
import tempfile
from pathlib import Path

import keras
import numpy as np

from keras_vit.export import parity


def litert(
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
    """Writes a model as a LiteRT (TensorFlow Lite) file.

    All backends go one way: a plain SavedModel that TensorFlow's converter reads, made on TensorFlow, in a process of
    its own where the model is not there already. The signature `serving_default` takes `images` as the model does and
    answers `outputs`, or several outputs by the model's names. The number of images is free, and in a model of any size
    theirs too: `resize_tensor_input` sets them. It is run in LiteRT, beside the model, before it is put in its place.

    Args:
        model: A `keras.Model` of one input.
        path: Path of the file, ending in ".tflite".
        precision: "float32", "float16" or "int8", as `precision.with_precision` rounds: the weights are stored so, and
            computed with as the model does. LiteRT's converter stores no bfloat16.
        images: Images as the model takes them, (batch, height, width, channels), to measure the change of the answers
            on; None for none.
        labels: Ints, (batch,), the classes of `images`, to measure the accuracy too; None for none.
        tolerance: Float, the largest difference allowed from the model of the same precision, in parts of the largest
            output or of 1, whichever is more. None takes 5e-3 with float16, since the converter adds some weights up,
            as positions and a bias, and rounds their sums too; else 1e-4, and 5e-2 for a model that computes in
            bfloat16, 1e-2 in float16 or on a GPU.
        overwrite: Bool, whether to replace what is at `path`.
        custom_module: Name of a module, or path of a Python file, that defines the model's own layers, where the other
            process cannot find them.

    Returns:
        A `parity.ExportReport`; printed, it says the size, the difference and the change.

    Raises:
        ImportError: If TensorFlow or ai-edge-litert is not installed.
        FileExistsError: If there is something at `path` and `overwrite` is False.
        ValueError: If an argument is out of its range, or the model has not one input.
        ParityError: If the file answers otherwise than the model; it is not written.
        RuntimeError: If the model cannot be exported.

    Example:

    >>> keras_vit.export.litert(model, "vit.tflite")  # doctest: +SKIP
    ExportReport(path=PosixPath('vit.tflite'), precision='float32', ...)
    """
    parity.require(("tensorflow", "tensorflow"), ("ai_edge_litert", "ai-edge-litert"))
    if tolerance is None:
        tolerance = 5e-3 if precision == "float16" else None
    return parity.write_checked(
        model,
        path,
        write_file,
        run,
        backend="tensorflow",
        suffix=".tflite",
        precision=precision,
        supported=("float32", "float16", "int8"),
        images=images,
        labels=labels,
        tolerance=tolerance,
        overwrite=overwrite,
        custom_module=custom_module,
    )


def write_file(model, path, precision):
    """Writes a LiteRT file on the TensorFlow backend."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory(prefix="keras_vit_") as folder:
        save_plain(model, folder)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["serving_default"])
        if precision == "float16":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.target_spec.supported_types = [tf.float16]
        Path(path).write_bytes(converter.convert())


def save_plain(model, folder):
    """Saves a model of the TensorFlow backend as a SavedModel of one signature, for converters.

    It has nothing that only a server wants, as decoders and limits, which converters do not know.
    """
    import tensorflow as tf

    names = parity.output_names(model)

    def answer(images):
        return dict(zip(names, keras.tree.flatten(model(images, training=False)), strict=True))

    (spec,) = model.inputs
    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    signature = tf.function(answer, autograph=False).get_concrete_function(
        tf.TensorSpec(spec.shape, spec.dtype, name="images")
    )
    tf.saved_model.save(module, folder, signatures={"serving_default": signature})


def run(path, batches, names):
    """Answers batches of images with a LiteRT file."""
    from ai_edge_litert.interpreter import Interpreter

    received = []
    for batch in batches:
        # One for each: an interpreter cannot be resized while an answer of it is referred to.
        answer = Interpreter(model_path=os.fspath(path)).get_signature_runner("serving_default")(images=batch)
        received.append([np.array(answer[name], "float32") for name in names])
    return received
